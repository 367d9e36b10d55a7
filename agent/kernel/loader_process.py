"""The parent's side of the loader's process (agent/kernel/loader.py). Has only fast imports, so that the agent can
start the loader first; it then waits for its job.
"""

from __future__ import annotations

import math
import os
import socket
import subprocess
from pathlib import Path

from agent.posix.supervisor import Restarts, Supervised, spawn_with_socket

SYSTEM_PYTHON = "/usr/bin/python3"
#: Timeout for a hung loader. It needs a second; under emulation (tests/vm) a minute or two.
TIMEOUT_S = 240.0


def begin() -> Supervised:
    """Starts a loader. One that fails may be started once more."""
    restarts = Restarts(in_a_row=1, steady_s=math.inf)
    loader = Supervised("loader", "loads the BPF programs", _start, ends_s=TIMEOUT_S, restarts=restarts)
    loader.start()
    return loader


def _start() -> tuple[subprocess.Popen[bytes], socket.socket]:
    script = Path(__file__).with_name("loader.py")
    process, sock = spawn_with_socket([SYSTEM_PYTHON, "-I", str(script)], os.getpid(), environment=os.environ)
    sock.settimeout(TIMEOUT_S)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    return process, sock
