"""An API that reads its rule from a file for each decision, past the page cache (O_DIRECT), as databases do."""

from __future__ import annotations

import mmap
import os
import random

from agent.lab.program import Run
from agent.lab.programs.limiters import api, decide

RULES, RULE_BYTES = 64, 16 << 10


def serve(run: Run) -> None:
    place = run.shared / "disk" / "rules"
    with place.open("wb") as made:
        made.write(random.randbytes(RULES * RULE_BYTES))
        os.fsync(made.fileno())
    rules = os.open(place, os.O_RDONLY | os.O_DIRECT)
    room = mmap.mmap(-1, RULE_BYTES)  # aligned, as O_DIRECT needs it

    def check() -> int:
        os.lseek(rules, random.randrange(RULES) * RULE_BYTES, os.SEEK_SET)
        if os.readv(rules, [room]) != RULE_BYTES:
            raise OSError("the file of rules is cut off")
        return 1

    decide(run, check)


PROGRAMS = (api("api-lookup", serve, "disk", group="disk"),)
