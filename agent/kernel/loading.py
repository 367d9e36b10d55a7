"""The parent's side of the loader's process (agent/kernel/loader.py). Has only fast imports, so that the agent can
start the loader first; it then waits for its job.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

from agent.posix.signals import sheltered

SYSTEM_PYTHON = "/usr/bin/python3"
#: Timeout for a hung loader. It needs a second; under emulation (tests/vm) a minute or two.
TIMEOUT_S = 240


class LoaderProcess:
    """``socket``: the parent's end of a SOCK_SEQPACKET pair. Raises OSError if it cannot be started."""

    def __init__(self) -> None:
        self.socket, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        script = Path(__file__).with_name("loader.py")
        with child_end, sheltered():
            self._process = subprocess.Popen(
                [SYSTEM_PYTHON, "-I", str(script), str(child_end.fileno()), str(os.getpid())],
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def send(self, job: dict[str, object]) -> None:
        """Sends the job. Raises OSError if the loader has ended."""
        self.socket.send(json.dumps(job).encode())

    def ended(self, error: Exception) -> str:
        """How it ended, as text, after this error at its socket; kills a loader that hangs."""
        if isinstance(error, TimeoutError):
            self._process.kill()
            return f"took longer than {TIMEOUT_S} s"
        code = self._process.wait(TIMEOUT_S)
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}: {error}"

    def close(self) -> None:
        """Waits for its end."""
        self.socket.close()
        self._process.wait()
