"""The names of all files that the agent creates in its store and run directory. A directory with only these names
counts as the agent's own (agent/posix/directories.py). New files get their name here.
"""

from __future__ import annotations

import re

#: Of the store: the writer's and the sealer's locks, the store's own clock, losses that are not stored yet, the last
#: reading of the clocks, and the usual values per hour.
LOCK = "lock"
SEAL_LOCK = "seal.lock"
AGE = "age.json"
OUTAGE = "outage.json"
CLOCK = "clock.last"
HOURS = "hours.last"
STORE = frozenset({LOCK, SEAL_LOCK, AGE, OUTAGE, CLOCK, HOURS})

#: Of the run directory: its sockets, and the OTLP receiver's directory.
_RUN = frozenset({"control.sock", "intake.sock", "intake.seq.sock", "intake.stream.sock", "notices.sock", "otlp"})

#: Segments of the store (being written, sealed, being sealed), and the files of a sealed one.
HOT = re.compile(r"hot-(\d{8,})\.tsl")
SEALED = re.compile(r"sealed-(\d{8,})")
SEALING = re.compile(r"seal-\d{8,}\.tmp")
IN_SEALED = re.compile(r"\w+\.(parquet|cells)|head\.json(\.tmp)?")

_NAMES = _RUN | STORE


def is_own(name: str) -> bool:
    """Whether the agent creates files of that name in its directories."""
    return name in _NAMES or any(pattern.fullmatch(name) for pattern in (HOT, SEALED, SEALING))
