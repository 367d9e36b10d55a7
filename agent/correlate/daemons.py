"""Time daemons' view of the clock, compared with the oscillator or a server (agent/clock/daemons/check.py)."""

from __future__ import annotations

import numpy as np

from agent.correlate.episode import Episode
from agent.correlate.rows import OfSecond
from agent.correlate.thresholds import SECOND, CorrelatorConfig
from agent.correlate.watch import Watch
from agent.correlate.words import text
from agent.tables import TABLES

#: Columns that a symptom of time daemons reads.
READS = {"clock_daemon": ("daemon", "kind", "state", "source", "offset_ns", "distance_ns", "reason")}
_TABLE = TABLES["clock_daemon"]
_CHECK, _DISAGREE = _TABLE.code("kind", "check"), _TABLE.code("state", "disagree")
_FORGET_NS = 600 * SECOND  # a comparison that is not repeated for this long has ended with its daemon


class DaemonWatch(Watch):
    """One subject is one comparison: a daemon, and what it is compared with. A row is valid until the next one of its
    subject.
    """

    metrics = ("apart",)

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self.names: dict[int, tuple[str, str]] = {}
        self.held: dict[tuple[str, str], np.void] = {}
        self.reported: set[tuple[str, str]] = set()
        self._over: set[tuple[str, str]] = set()  # agrees again, but disagreed within the last second

    def fill(self, second: int, rows: OfSecond) -> np.ndarray:
        for key in self._over:
            self.held.pop(key, None)
            self.reported.discard(key)
        self._over = set()
        reported = rows["clock_daemon"]
        for row in reported[reported["kind"] == _CHECK]:
            key = text(row["daemon"]), text(row["source"])
            if row["state"] == _DISAGREE:
                self.held[key] = row
                self._over.discard(key)
            elif key in self.held:
                self._over.add(key)
        self.held = {key: row for key, row in self.held.items() if second * SECOND - row["t_ns"] < _FORGET_NS}
        self.names = {self.series.slot(key, second): key for key in self.held}
        return np.array([slot for slot in self.names if slot >= 0], np.int64)

    def describe(self, symptom: str, slot: int) -> Episode:
        daemon, against = self.names[slot]
        other = "MONOTONIC_RAW" if against == "raw" else against
        subject, keys = f"{daemon}'s time against {other}", {"daemon": daemon}
        return Episode(
            symptom, (daemon, against), slot, subject, "wall clock", metric="apart", unit="ns", base=np.nan, keys=keys
        )
