#!/usr/bin/env bash
# Installs what the tests need, then runs them. No ARGS: what CI runs, in groups. --all: every test, on four kernels, and
# long fuzzing; run it before a change is called done. Other ARGS are pytest's: `./test.sh tests/kernel/test_tls.py`.
# Debian 12 and 13, root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. deploy/install.sh
install_for test
# Some tests give up root, and need this code all the same: where others may not read it (a home directory), it is copied.
if [ "$(id -u)" = 0 ] && ! setpriv --reuid 65534 --regid 65534 --clear-groups test -r "$PWD/setup.py"; then
	copy=$(mktemp -d /var/tmp/tickscope-tests.XXXXXX)
	trap 'rm -rf "$copy"' EXIT
	chmod 755 "$copy"
	cp -a . "$copy/tickscope"
	cd "$copy/tickscope"
fi
case "$*" in
'' | --all) "$TICKSCOPE_VENV/bin/python" -m tests.groups "$@" ;;
*) "$TICKSCOPE_VENV/bin/python" -m pytest "$@" ;;
esac
