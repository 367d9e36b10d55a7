"""APIs with a limiter that keeps its state in a file under a lock, by flock and by fcntl; and a program that takes the
same locks now and then.
"""

from __future__ import annotations

import fcntl
import os
import time
from functools import partial
from typing import Any

from agent.lab.program import LabProgram, Run
from agent.lab.programs.limiters import api, decide

TAKE: dict[str, Any] = {"flock": fcntl.flock, "posix": fcntl.lockf}


def serve(kind: str, run: Run) -> None:
    state = os.open(run.shared / f"state.{kind}", os.O_RDWR | os.O_CREAT, 0o666)

    def check() -> int:
        TAKE[kind](state, fcntl.LOCK_EX)
        try:
            os.pwrite(state, b"%d\n" % os.getpid(), 0)
        finally:
            TAKE[kind](state, fcntl.LOCK_UN)
        return 1

    decide(run, check)


def hold(kind: str, run: Run) -> None:
    """Holds the lock for ``hold_s`` each ``every_s``."""
    run.listen()
    state = os.open(run.shared / f"state.{kind}", os.O_RDWR | os.O_CREAT, 0o666)
    while True:
        TAKE[kind](state, fcntl.LOCK_EX)
        time.sleep(run.settings["hold_s"])
        TAKE[kind](state, fcntl.LOCK_UN)
        until = time.monotonic() + run.settings["every_s"]
        while time.monotonic() < until and not run.settings["now"]:
            time.sleep(min(0.05, run.settings["every_s"]))
        run.settings["now"] = False


PROGRAMS = tuple(
    p
    for kind in TAKE
    for p in (
        api(f"api-{kind}", partial(serve, kind), f"state.{kind}"),
        LabProgram(f"hold-{kind}", partial(hold, kind), settings={"hold_s": 0.0005, "every_s": 1.0, "now": False}),
    )
)
