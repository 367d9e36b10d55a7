"""Verbs on a terminal of a given size."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import termios


def on_terminal(*argv: object, columns: int = 100, errors: bool = False, **env: str) -> str:
    """What the verb shows there, that ends well or finds nothing. errors: with what it says on stderr."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (40, columns))
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", **env}
    command = [sys.executable, "-m", "agent", *map(str, argv)]
    with subprocess.Popen(
        command, stdout=theirs, stderr=theirs if errors else subprocess.DEVNULL, env=environment
    ) as process:
        os.close(theirs)
        out = b""
        with contextlib.suppress(OSError):  # its last descriptor of the terminal is closed
            while data := os.read(ours, 65536):
                out += data
    os.close(ours)
    assert process.returncode in (0, 3), out
    return out.decode().replace("\r\n", "\n")
