"""The console script, which is there before anything is imported that takes its time."""

from __future__ import annotations

import os
import signal
from types import FrameType


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    """Ends at once, wherever it is: an exception could be swallowed in a callback of a library, or end in a traceback.
    What reads has nothing to clean up; who has (demo, record, the agent) takes the signal over.
    """
    os._exit(130)


def main() -> None:
    signal.signal(signal.SIGINT, _interrupted)  # also where a shell started this in the background, with SIGINT ignored
    from agent.cli.main import main as verbs

    verbs()
