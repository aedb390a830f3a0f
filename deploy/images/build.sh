#!/bin/sh
# Build images: build.sh [adapter] [worker-cpu] [worker-cuda], by default the first two.
#
# pip on this machine downloads the locked packages to build/wheels, with its configuration of indexes, proxies and
# credentials. The build uses these files and needs no network except for the two base images. Variables:
#   BUILDER_TOOL  docker, podman or buildah; by default the first one that works
#   BUILDER, BASE images with Python 3.11 at one path; BUILDER has a C compiler, Python's headers and venv
#   PYTHON        3.11 or newer, with venv (python3)
#   TORCH_INDEX   index of PyTorch's CPU build, if pip's configured indexes do not have it
#   ARCH          x86_64 or aarch64 (this machine's)
#   TAG           of the images (the version)
set -eu
cd "${0%/*}/../.."

tool=${BUILDER_TOOL:-}
for each in docker podman buildah; do
  [ -z "$tool" ] && "$each" info > /dev/null 2>&1 && tool=$each
done
[ -n "$tool" ] || { echo "Neither docker nor podman nor buildah works here: install one of them" >&2; exit 1; }

architecture=${ARCH:-$(uname -m)}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
venv=build/images
[ -x $venv/bin/pip ] || ${PYTHON:-python3} -m venv $venv

# The bases have glibc 2.36.
platforms="--platform linux_$architecture --platform manylinux2014_$architecture"
for minor in $(seq 5 36); do
  platforms="$platforms --platform manylinux_2_${minor}_$architecture"
done

download() {
  echo "downloading the packages of $1"
  # shellcheck disable=SC2086
  $venv/bin/pip download --quiet --no-deps --require-hashes --only-binary=:all: --python-version 3.11 $platforms \
    ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -r "deploy/images/$1.txt" -r deploy/images/build.txt \
    --dest "build/wheels/$1"
}

# build NAME DOCKERFILE ARGUMENT...
build() {
  name=$1 file=$2
  shift 2
  echo "building antiphon-$name:${TAG:-$version} with $tool"
  [ -z "${BUILDER:-}" ] || set -- "$@" --build-arg "BUILDER=$BUILDER"
  [ -z "${BASE:-}" ] || set -- "$@" --build-arg "BASE=$BASE"
  # OCI's format, the default of podman and buildah, has no health checks.
  [ "$tool" = docker ] || set -- "$@" --format docker
  "$tool" build "$@" --tag "antiphon-$name:${TAG:-$version}" --file "deploy/images/$file" .
}

for name in "${@:-default}"; do
  case $name in
    default) exec "$0" adapter worker-cpu ;;
    adapter) download adapter; build adapter adapter.Dockerfile ;;
    worker-cpu) download worker-cpu; build worker-cpu worker.Dockerfile ;;
    worker-cuda)
      download worker-cuda
      build worker-cuda worker.Dockerfile --build-arg LOCK=worker-cuda --build-arg DEVICE=cuda \
        --build-arg "BASE=${BUILDER:-docker.io/library/python:3.11-bookworm}"
      ;;
    *) echo "$name is no image: adapter, worker-cpu or worker-cuda" >&2; exit 2 ;;
  esac
done
