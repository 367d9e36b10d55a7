"""The console script. It handles SIGINT and closed streams before it imports anything slow."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    """Ends at once. An exception could be swallowed by a library's callback, or print a traceback. Verbs with something
    to clean up (demo, record, the agent) install their own handler.
    """
    os._exit(130)


def _open_streams() -> None:
    """Replaces a closed standard stream by /dev/null: writes to it are discarded, and no file opened later gets its
    descriptor number.
    """
    for fd, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, fd)
            if null != fd:
                os.close(null)
            os.set_inheritable(fd, True)
            setattr(sys, name, open(fd, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def main() -> None:
    signal.signal(signal.SIGINT, _interrupted)  # also if a shell started this in the background, with SIGINT ignored
    _open_streams()
    from agent.cli.main import main as verbs

    verbs()
