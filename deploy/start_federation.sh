#!/bin/sh
# Register the keys of the sites with the SuperLink, then start the run and keep it running.
#
#   sh start_federation.sh APP KEYS [RUN CONFIG]…
#
# A key that is registered already is not an error.
set -eu
app=$1
keys=$2
shift 2
for key in "$keys"/*.pub; do
  flwr supernode register "$key" deployment || echo "$key: is it registered already?"
done
for setting in "$@"; do
  set -- "$@" --run-config "$setting"
  shift
done
exec python3 -m fedraw.flower.supervise "$app" deployment "$@"
