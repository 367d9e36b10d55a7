#!/usr/bin/env bash
# Installs what the tests need, then is the test runner with ARGS. No path among ARGS: all tests but the benchmarks and those in VMs (`./test.sh tests/vm`
# boots two old kernels, or those that TICKSCOPE_TEST_KERNELS names). Debian 12 and 13, root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. deploy/install.sh
install_for test
exec "$TICKSCOPE_VENV/bin/python" -m pytest "$@"
