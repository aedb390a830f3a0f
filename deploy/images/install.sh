#!/bin/sh
# Install Antiphon from /source and the locked packages into /opt/antiphon, in the builder of an image, without network.
#
#   install.sh LOCK WHEELS
set -eu
lock=${1:?usage: install.sh LOCK WHEELS}
wheels=${2:?usage: install.sh LOCK WHEELS}

python3 -m venv /build
pip="/build/bin/python -m pip --disable-pip-version-check --no-cache-dir"
$pip install --quiet --no-index --find-links "$wheels" --require-hashes -r "${0%/*}/build.txt"
$pip wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir /built /source

python3 -m venv --without-pip /opt/antiphon
into="$pip --python /opt/antiphon/bin/python install --quiet --no-index"
$into --find-links "$wheels" --require-hashes -r "$lock"
$into --no-deps /built/*.whl

# Setuptools treats the extensions as optional; an image without them would be slow.
ls /opt/antiphon/lib/python3.*/site-packages/inference_service/kernels/native*.so > /dev/null
# The tests of other packages are larger than their code.
find /opt/antiphon/lib -depth -type d -name tests -exec rm -r {} +
