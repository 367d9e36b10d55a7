#!/usr/bin/env bash
# Installs what is missing, once, then is `tickscope ARGS` (no verb: `run`). Debian 12 and 13.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. deploy/install.sh
case ${1:-} in
-h | --help | --version) ;;
-* | '') set -- run "$@" ;;
esac
case $1 in
demo | lab) install_for "$1" ;;
*) install_for run ;;
esac
exec "$TICKSCOPE_VENV/bin/tickscope" "$@"
