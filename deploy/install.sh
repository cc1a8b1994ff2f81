#!/bin/sh
# Install fedraw with pinned dependencies into an environment of its own.
#
#   sh deploy/install.sh TARGET EXTRAS     for example: sh deploy/install.sh /opt/fedraw flower
#
# The Dockerfile runs this, and so does tests/deploy/test_install.py in an empty folder. It needs a
# checkout of fedraw, Python 3.11 or newer, and a package index.
set -eu
target=$1
extras=$2
source=$(cd "$(dirname "$0")/.." && pwd)
${PYTHON:-python3} -m venv "$target"
"$target/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
  --constraint "$source/constraints.txt" "$source[$extras]"
"$target/bin/fedraw" --version
