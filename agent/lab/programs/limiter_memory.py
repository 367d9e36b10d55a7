"""An API that decides from tables that it maps from a file, and from memory of its own."""

from __future__ import annotations

import mmap
import random

from agent.lab.program import Run
from agent.lab.programs.limiters import api, decide

TABLE_BYTES, OWN_BYTES, READS, PAGE = 16 << 20, 8 << 20, 400, 4096


def serve(run: Run) -> None:
    place = run.shared / "disk" / "tables"
    with place.open("wb") as file:
        for _ in range(TABLE_BYTES >> 20):
            file.write(random.randbytes(1 << 20))
    with place.open("rb") as made:
        table = mmap.mmap(made.fileno(), 0, prot=mmap.PROT_READ)
    kept = [bytearray(random.randbytes(1 << 20)) for _ in range(OWN_BYTES >> 20)]
    pages = TABLE_BYTES // PAGE

    def check() -> int:
        kept.extend(bytearray(random.randbytes(1 << 20)) for _ in range(run.settings["grow"]))
        return sum(table[random.randrange(pages) * PAGE] for _ in range(READS)) & 1

    decide(run, check)


PROGRAMS = (api("api-tables", serve, "disk", grow=0),)
