"""Starting a process of the agent's own that asks or answers others, and that is given its settings and one end of a
socket.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from agent.posix.signals import sheltered

#: Of the agent's environment, where there may be secrets.
_PASSED = ("PATH", "MALLOC_ARENA_MAX", "SSL_CERT_FILE", "SSL_CERT_DIR")


def spawned(
    module: str, label: str, settings: Mapping[str, object], *more: int
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """``python -m MODULE SOCKET SETTINGS PARENT [MORE]``: the process, and the agent's end of its socket
    (SOCK_SEQPACKET, non-blocking).

    SOCKET and SETTINGS are descriptors, of which the second holds the settings as JSON; PARENT is the agent's pid.
    label: of the memory that holds them; more: descriptors that it gets, too. Raises OSError, and leaves nothing open
    then.
    """
    package = str(Path(__file__).resolve().parents[2])
    env = {name: os.environ[name] for name in _PASSED if name in os.environ} | {
        "PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH")))),
        "LC_ALL": "C.UTF-8",
    }
    command = [sys.executable, "-P", "-m", module]
    with contextlib.ExitStack() as held:
        memory = os.memfd_create(label, os.MFD_CLOEXEC)  # not the command line, which everybody may read
        said = held.enter_context(open(memory, "w+b", buffering=0))
        said.write(json.dumps(settings).encode())
        said.seek(0)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        held.enter_context(theirs)
        fds = theirs.fileno(), said.fileno()
        try:
            ours.setblocking(False)
            with sheltered():
                child = subprocess.Popen(
                    [*command, *map(str, (*fds, os.getpid(), *more))],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(*fds, *more),
                    env=env,
                )
        except OSError:
            ours.close()
            raise
        return child, ours


def how(code: int) -> str:
    """How a process ended, by subprocess's return code."""
    try:
        return signal.Signals(-code).name if code < 0 else f"exit status {code}"
    except ValueError:  # a real-time signal
        return f"signal {-code}"
