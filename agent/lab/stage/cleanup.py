"""Cleans up a run once its director has ended, however it ended: a separate process, which sees its standard input
close.

It has a session of its own, so that signals of a terminal do not reach it. If it is killed, too, the next start of the
laboratory cleans up.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from agent.lab.stage.ledger import undo


def main() -> int:
    directory = Path(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 64):
        pass
    problem = undo(directory)
    for text in problem:
        print(f"lab: could not remove {text}", file=sys.stderr)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
