#!/usr/bin/env bash
# Installs what the tests need, then runs them. No ARGS: what CI runs, in groups. --all: every test, on four kernels, and
# long fuzzing; run it before a change is called done. Other ARGS are pytest's: `./test.sh tests/kernel/test_tls.py`.
# Debian 12 and 13, root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. deploy/install.sh
install_for test
case "$*" in
'' | --all) exec "$TICKSCOPE_VENV/bin/python" -m tests.groups "$@" ;;
*) exec "$TICKSCOPE_VENV/bin/python" -m pytest "$@" ;;
esac
