#!/bin/sh
# Make the secrets of compose.yaml: keys, passwords, certificates and the users of Redis, with openssl 3.
#
#   prepare.sh [FOLDER]     by default secrets, beside this script
#
# ANTIPHON names the command that makes client keys (antiphon). Existing files are kept, except certificates: they are
# valid for 90 days. To renew them, run the script again and restart the services.
set -eu
umask 077

here=$(cd "${0%/*}" && pwd)
folder=${1:-$here/secrets}
mkdir -p "$folder/adapter" "$folder/worker" "$folder/redis" "$folder/prometheus" "$folder/grafana"
cd "$folder"
folder=$(pwd)

# secret FILE
secret() {
  [ -e "$1" ] || openssl rand -hex 32 > "$1"
}

# client FILE NAME [OPTION]: write a key to FILE and add its line to the file of keys
client() {
  file=$1
  shift
  [ -e "$file" ] && return
  "${ANTIPHON:-antiphon}" key "$@" >> adapter/clients 2> "$file.new" || { cat "$file.new" >&2; exit 1; }
  sed -i 's/.*: //' "$file.new"
  mv "$file.new" "$file"
}

secret worker/worker.key
cp worker/worker.key adapter/worker.key
secret adapter/client-secret.key
secret adapter/redis.password
secret worker/redis.password
secret grafana/password
client alice.key alice
client prometheus/admin.key prometheus --admin

digest() { printf %s "$(cat "$1")" | sha256sum | cut -d' ' -f1; }
sed -e "s/ADAPTER_PASSWORD_SHA256/$(digest adapter/redis.password)/" \
  -e "s/WORKER_PASSWORD_SHA256/$(digest worker/redis.password)/" "$here/../redis/users.acl" > redis/users.acl
cp "$here/../redis/redis.conf" redis/redis.conf

"$here/../tls/make-certificates.sh" "$folder/tls"
for role in adapter worker redis; do
  rm -rf "$role/tls"
  cp -r "tls/$role" "$role/tls"
done

# Each container runs as its own user and mounts only its subfolder. Other users cannot enter the parent folder.
chmod -R a+rX adapter worker redis prometheus grafana
chmod 700 .
