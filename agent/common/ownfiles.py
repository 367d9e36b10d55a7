"""The names of everything that the agent puts into its store's and its run directory: by these names a directory is
known as the agent's own (agent/posix/directories.py). A new file gets its name here.
"""

from __future__ import annotations

import re

#: Of the store: the writer's and the sealer's locks, the store's own clock, losses that could not be written yet, the
#: last reading of the clocks, and what is usual at each hour.
LOCK = "lock"
SEAL_LOCK = "seal.lock"
AGE = "age.json"
OUTAGE = "outage.json"
CLOCK = "clock.last"
HOURS = "hours.last"
STORE = frozenset({LOCK, SEAL_LOCK, AGE, OUTAGE, CLOCK, HOURS})

#: Of the run directory: its sockets, and the OTLP receiver's directory.
_RUN = frozenset({"control.sock", "intake.sock", "intake.seq.sock", "intake.stream.sock", "notices.sock", "otlp"})

#: Segments of the store: being written, sealed (a directory), being sealed; and the files of a sealed one.
HOT = re.compile(r"hot-(\d{8,})\.tsl")
SEALED = re.compile(r"sealed-(\d{8,})")
SEALING = re.compile(r"seal-\d{8,}\.tmp")
IN_SEALED = re.compile(r"\w+\.(parquet|cells)|head\.json(\.tmp)?")

_NAMES = _RUN | STORE


def is_own(name: str) -> bool:
    """Whether the agent puts something of that name into a directory of its own."""
    return name in _NAMES or any(pattern.fullmatch(name) for pattern in (HOT, SEALED, SEALING))
