"""A symptom of time daemons: what one believes of the clock contradicts the oscillator or a server (agent/clock/daemons/check.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from agent.correlate.config import SECOND, CorrelatorConfig
from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.watch import Watch
from agent.correlate.words import process, span, text
from agent.tables import TABLES

if TYPE_CHECKING:
    from agent.correlate.view import View

SYMPTOM = "clock_disagreement"
_TABLE = TABLES["clock_daemon"]
_CHECK, _DISAGREE = _TABLE.code("kind", "check"), _TABLE.code("state", "disagree")
_FORGET_NS = 600 * SECOND  # a comparison that is not repeated for this long has ended with its daemon
_REACH_NS = 900 * SECOND  # how far back a comparison may reach


class BeliefWatch(Watch):
    """One subject is one comparison: a daemon, and what it is compared with. A row holds until the next of its subject."""

    metrics = ("apart",)

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self.names: dict[int, tuple[str, str]] = {}
        self._held: dict[tuple[str, str], np.void] = {}
        self._told: set[tuple[str, str]] = set()
        self._over: set[tuple[str, str]] = set()  # agrees again, but was apart within the last second

    def fill(self, second: int, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        for key in self._over:
            self._held.pop(key, None)
            self._told.discard(key)
        self._over = set()
        told = rows.get("clock_daemon")
        for row in told[told["kind"] == _CHECK] if told is not None else ():
            key = text(row["daemon"]), text(row["source"])
            if row["state"] == _DISAGREE:
                self._held[key] = row
                self._over.discard(key)
            elif key in self._held:
                self._over.add(key)
        self._held = {key: row for key, row in self._held.items() if second * SECOND - row["t_ns"] < _FORGET_NS}
        self.names = {self.series.slot(key, second): key for key in self._held}
        return np.array([slot for slot in self.names if slot >= 0], np.int64)

    def describe(self, symptom: str, slot: int) -> Episode:
        daemon, against = self.names[slot]
        other = "MONOTONIC_RAW" if against == "raw" else against
        return Episode(symptom, (daemon, against), slot, f"{daemon}'s time against {other}", "wall clock", 0, 0, "apart", "ns", np.nan, 0.0, 0.0, 0)

    def judge(self, second: int, slots: np.ndarray, rows: Mapping[str, np.ndarray]) -> list[Episode]:
        """Bad: further apart than both bounds together. The source of the rows knows the bounds, so that once is enough."""
        opened = []
        for slot in slots.tolist():
            key = self.names[slot]
            row = self._held[key]
            apart = float(row["offset_ns"])
            episode = self.active.get((SYMPTOM, slot))
            if episode is not None:
                self.extend(episode, second, abs(apart))
            elif key not in self._told:
                self._told.add(key)
                episode = self.describe(SYMPTOM, slot)
                episode.start_ns, episode.words = int(row["t_ns"]), text(row["reason"])
                episode.facts = {"apart_ns": apart, "bound_ns": float(row["distance_ns"])}
                self.open(episode, second, abs(apart), 1)
                opened.append(episode)
        return opened


def moved(episode: Episode, view: View) -> Iterator[Verdict]:
    """Somebody moved the clock by just as much, and the daemon does not know."""
    if episode.symptom != SYMPTOM:
        return
    apart, bound = episode.facts["apart_ns"], episode.facts["bound_ns"]
    for jump in view.jumps[::-1]:
        if -SECOND <= episode.start_ns - jump.t_ns <= _REACH_NS and abs(jump.size_ns - apart) <= bound:
            who = process(jump.comm, jump.pid) if jump.pid or jump.comm else "somebody who was not seen"
            way = "back" if jump.backward else "forward"
            words = f"{who} moved the wall clock {way} by {span(jump.size_ns)}, which {episode.key[0]} did not know"
            yield Verdict(jump.cause, 0.93, str(jump.t_ns), words, (item("clock_change", "size", jump.size_ns, "ns", t_ns=jump.t_ns, pid=jump.pid),))
            return
    yield Verdict("clock_step", 0.0, "", "no step of that size was seen")
