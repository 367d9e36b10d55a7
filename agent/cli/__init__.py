"""The console script, which is there before anything is imported that takes its time."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    """Ends at once, wherever it is: an exception could be swallowed in a callback of a library, or end in a traceback.
    What reads has nothing to clean up; who has (demo, record, the agent) takes the signal over.
    """
    os._exit(130)


def _open_streams() -> None:
    """A standard stream that is closed becomes /dev/null: what is written to it is dropped, and no file that is opened
    later takes its number.
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
    signal.signal(signal.SIGINT, _interrupted)  # also where a shell started this in the background, with SIGINT ignored
    _open_streams()
    from agent.cli.main import main as verbs

    verbs()
