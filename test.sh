#!/usr/bin/env bash
# Installs what the tests need, then is the test runner with ARGS. No ARGS: all of them but the benchmarks, those in VMs on two old kernels (as
# TICKSCOPE_TEST_KERNELS says; all of them on all kernels is `python -m tests.vm test`). Debian 12 and 13, root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. deploy/install.sh
install_for test
if [ $# -eq 0 ]; then set -- tests/unit tests/kernel tests/servers tests/system tests/vm; fi
exec "$TICKSCOPE_VENV/bin/python" -m pytest "$@"
