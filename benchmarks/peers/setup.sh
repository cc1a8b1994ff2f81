#!/bin/sh
# Makes one environment for each peer in .peers/NAME: `sh benchmarks/peers/setup.sh [NAME...]`.
# pip's configuration sets the package index. torch is pinned to fedraw's version, so that all peers
# run the same kernels, and pip installs the CPU build if the index has one.
set -eu
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}

packages() {
  case $1 in
    flsim) echo "flsim==0.1.0" ;;
    appfl) echo "appfl==1.12.0" ;;
    flower) echo "flwr[simulation]==1.41.0" ;;
    pfl) echo "pfl[pytorch]==0.6.0" ;;
    flgo) echo "flgo==0.4.4" ;;
    *) echo "unknown peer $1; known: flsim, appfl, flower, pfl and flgo" >&2; exit 2 ;;
  esac
}

mkdir -p .peers
grep '^torch==' constraints.txt > .peers/constraints.txt
for name in ${*:-flsim appfl flower pfl flgo}; do
  wanted=$(packages "$name")
  start=$(date +%s)
  rm -rf ".peers/$name"
  "$PYTHON" -m venv ".peers/$name"
  if ".peers/$name/bin/pip" install --quiet --disable-pip-version-check \
      --constraint .peers/constraints.txt torch numpy "$wanted" > ".peers/$name.log" 2>&1; then
    echo "$name: $wanted, $(($(date +%s) - start)) s, $(du -sm ".peers/$name" | cut -f1) MB"
  else
    echo "$name: pip could not install $wanted; see .peers/$name.log"
    rm -rf ".peers/$name"
  fi
done
