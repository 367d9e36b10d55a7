"""An API that writes each decision to a journal and syncs it, on a disk of its own; and another program that writes
there.
"""

from __future__ import annotations

import os

from agent.common.clocks import boot_ns
from agent.lab.program import LabProgram, Run
from agent.lab.programs.limiters import api, decide

MOST_BYTES = 1 << 16  # then it starts again, so that it needs space on the disk again and again


def serve(run: Run) -> None:
    journal = os.open(run.shared / "disk" / "journal", os.O_CREAT | os.O_WRONLY, 0o600)

    def check() -> int:
        os.write(journal, os.urandom(1024))
        os.fsync(journal)
        if os.lseek(journal, 0, os.SEEK_CUR) >= MOST_BYTES:
            os.ftruncate(journal, 0)
            os.lseek(journal, 0, os.SEEK_SET)
        return 1

    decide(run, check)


def write(run: Run) -> None:
    """Writes some kilobytes a second, unsynced, until its settings ask for more, and for a sync. It alternates between
    two files, so that it never holds much of the disk.
    """
    run.listen()
    tick = run.every(5)
    place, number = run.shared / "disk", 0
    while True:
        tick()
        start_ns = boot_ns()
        number += 1
        try:
            with (place / f"bulk{number % 2}").open("wb") as file:
                file.write(os.urandom(1 << 16) * max(1, run.settings["bytes"] >> 16))
                if run.settings["sync"]:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            run.log("write", start_ns, type(error).__name__)
        else:
            run.log("write", start_ns)


PROGRAMS = (
    api("api-journal", serve, "disk", group="disk"),
    LabProgram("writer", write, settings={"bytes": 1 << 16, "sync": False}, uses=("disk",), group="disk"),
)
