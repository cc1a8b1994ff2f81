#!/bin/sh
# Make all keys of a federation, and put into a folder for each machine what that machine may have.
#
#   sh deploy/make_keys.sh KEYS APP SITE…     for example: sh deploy/make_keys.sh keys examples/flower-app north south
#
# KEYS/authority  ca.key, which signs certificates: keep it offline; and everything else
# KEYS/server     for the SuperLink and the SuperExec          KEYS/proxy   for the reverse proxy
# KEYS/operator   ca.pem, and the public keys to register      KEYS/SITE    for a site: ca.pem, site.key
#
# A key that exists is kept, so the same command adds a site. HOSTS lists more names of the server.
set -eu
umask 077
keys=$1
app=$2
shift 2
for site in "$@"; do
  case $site in
    authority | server | proxy | operator | ca | superlink | site)
      echo "make_keys.sh: a site cannot be called '$site', because the script uses this name for its own files; choose another name" >&2
      exit 2
      ;;
  esac
done
hosts=$(for host in superlink proxy ${HOSTS:-}; do printf ' --host %s' "$host"; done)
sites=$(for site in "$@"; do printf ' --site %s' "$site"; done)
# shellcheck disable=SC2086
python3 "$app/make_certificates.py" "$keys/authority" $hosts $sites
give() {
  folder=$1 owner=$2
  shift 2
  mkdir -p "$keys/$folder"
  for file in "$@"; do cp "$keys/authority/$file" "$keys/$folder/"; done
  [ "$(id -u)" != 0 ] || chown -R "$owner" "$keys/$folder"
}
give server 10001:10001 ca.pem superlink.pem superlink.key superexec.secret
give proxy 33:33 ca.pem superlink.pem superlink.key
give operator 10001:10001 ca.pem
for site in "$@"; do
  give operator 10001:10001 "$site.pub"
  cp "$keys/authority/$site.key" "$keys/authority/site.key"
  give "$site" 10001:10001 ca.pem site.key
  rm "$keys/authority/site.key"
done
