#!/usr/bin/env bash
# Installs what is missing, once, then is `tickscope ARGS` (no ARGS: `run`). Debian 12 and 13.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. deploy/install.sh
if [ "${1:-}" = demo ]; then install_for demo; else install_for run; fi
if [ $# -eq 0 ]; then set -- run; fi
exec "$TICKSCOPE_VENV/bin/tickscope" "$@"
