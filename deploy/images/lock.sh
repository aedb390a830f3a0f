#!/bin/sh
# Pin the packages of the images, with hashes: lock.sh writes deploy/images/*.txt from pyproject.toml, constraints.txt and
# the *.in files in this folder. It needs Python 3.11, as in the images, and pip's index. It writes no index address.
set -eu
cd "${0%/*}/../.."

venv=build/images
[ -x $venv/bin/pip ] || ${PYTHON:-python3} -m venv $venv
$venv/bin/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
  { echo "The images have Python 3.11: make lock PYTHON=python3.11, after rm -r $venv" >&2; exit 1; }
$venv/bin/pip install --quiet pip-tools==7.6.2

# lock NAME SOURCE...
lock() {
  name=$1
  shift
  # The existing file has no influence: pip resolves everything again. Antiphon itself is built from the checkout.
  rm -f "deploy/images/$name.txt"
  $venv/bin/pip-compile --quiet --generate-hashes --strip-extras --no-header --no-annotate --no-emit-options \
    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --unsafe-package antiphon \
    ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} --constraint constraints.txt \
    --output-file "deploy/images/$name.txt" "$@"
  sed -i -e '/^#/d' -e '/^$/d' "deploy/images/$name.txt"
}

lock build deploy/images/build.in
lock adapter --extra adapter --extra redis --extra vad pyproject.toml deploy/images/redis.in
lock worker-cpu --extra worker --extra redis pyproject.toml deploy/images/redis.in deploy/images/worker-cpu.in
lock worker-cuda --extra worker --extra redis --extra minicpmo pyproject.toml deploy/images/redis.in \
  deploy/images/worker-cuda.in
