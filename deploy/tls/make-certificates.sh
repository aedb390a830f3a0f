#!/bin/sh
# Make the certificates for TLS between adapters, workers and Redis, with openssl 3.
#
#   make-certificates.sh FOLDER [SAN of Redis, such as DNS:redis.internal,IP:10.0.0.9]
#
# Three private authorities separate the roles. `workers` signs the worker's server certificate and the adapter's client
# certificate. `redis` signs the certificate of Redis and the client certificates of both. `peers` signs the certificates
# between adapters. So a worker's certificate cannot open a session at another worker. To renew, run the script again in
# the same folder: it keeps the authorities and replaces all other certificates. Certificates are valid for DAYS (default
# 90), authorities for CA_DAYS (default 3650).
#
#   FOLDER/authorities/  keys of the authorities: remove them from the machines
#   FOLDER/adapter/      copy to /etc/antiphon/adapter/tls of every adapter
#   FOLDER/worker/       copy to /etc/antiphon/worker/tls of every worker
#   FOLDER/redis/        copy to /etc/antiphon/redis/tls of the Redis machine
set -eu
umask 077

folder=${1:?usage: make-certificates.sh FOLDER [SAN of Redis]}
redis_names=DNS:antiphon-redis${2:+,$2}
authorities=$folder/authorities
mkdir -p "$authorities"

new_key() {
  openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"
}

# authority NAME
authority() {
  [ -e "$authorities/$1.crt" ] && return
  new_key "$authorities/$1.key"
  openssl req -x509 -new -key "$authorities/$1.key" -sha256 -days "${CA_DAYS:-3650}" \
    -subj "/CN=Antiphon $1 authority" -addext "basicConstraints=critical,CA:TRUE,pathlen:0" \
    -addext "keyUsage=critical,keyCertSign,cRLSign" -out "$authorities/$1.crt"
}

# issue PLACE AUTHORITY USAGE NAME SAN: a key, its certificate and the authority's
issue() {
  place=$folder/$1
  mkdir -p "$place"
  new_key "$place/tls.key.new"
  openssl req -new -key "$place/tls.key.new" -subj "/CN=$4" -out "$place/tls.csr"
  cat > "$place/extensions" <<END
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=$3
subjectAltName=$5
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
END
  openssl x509 -req -in "$place/tls.csr" -CA "$authorities/$2.crt" -CAkey "$authorities/$2.key" \
    -sha256 -days "${DAYS:-90}" -extfile "$place/extensions" -out "$place/tls.crt.new" 2> /dev/null
  rm "$place/tls.csr" "$place/extensions"
  mv "$place/tls.key.new" "$place/tls.key"
  mv "$place/tls.crt.new" "$place/tls.crt"
  cp "$authorities/$2.crt" "$place/ca.crt"
}

authority workers
authority redis
authority peers
issue worker/workers workers serverAuth antiphon-worker DNS:antiphon-worker
issue adapter/workers workers clientAuth antiphon-adapter DNS:antiphon-adapter
issue adapter/peers peers serverAuth,clientAuth antiphon-adapter DNS:antiphon-adapter
issue redis redis serverAuth antiphon-redis "$redis_names"
issue worker/redis redis clientAuth antiphon-worker DNS:antiphon-worker
issue adapter/redis redis clientAuth antiphon-adapter DNS:antiphon-adapter
