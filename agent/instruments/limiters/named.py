"""Holds decisions of Go limiters until their limiters' names are known, which takes a moment once per calling place."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from agent.batch import Batch
from agent.common.copies import only, together
from agent.common.fairness import UpperBound
from agent.contracts import Finishing, Pending
from agent.instruments.limiters.decisions import at_once
from agent.instruments.limiters.limiter_waits import Waits
from agent.instruments.limiters.sites import Sites

#: The longest hold, and the most held decisions per process and in all; then they get an id with an unknown caller.
HELD_NS, HELD_A_PROCESS, HELD = 10_000_000_000, 2_048, 16_384
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "limiters",
        "time to resolve a limiter's call site; decisions that wait for it",
        f"{HELD_NS / 1e9:g} s; {HELD:,} decisions, {HELD_A_PROCESS:,} per process",
        "the id ends in `@?`",
        "the id",
    ),
)


class Named(Finishing, Pending):
    """Implements ``agent.contracts.Source``. Passes decisions that sleep to ``waits``."""

    name = "limiter_named"

    def __init__(self, sites: Sites, waits: Waits) -> None:
        self._sites, self._waits = sites, waits
        self._records: list[np.ndarray] = []

    def feed(self, records: np.ndarray) -> None:
        """Takes records of ``struct limiter_decision``."""
        self._records.append(records)

    def pending(self, now_ns: int) -> bool:
        """Whether decisions came, or wait for their name."""
        return bool(self._records)

    def drain(self, now_ns: int) -> Iterator[Batch]:
        if not self._records:
            return
        records = together(self._records)
        self._records = []
        young = ~self._sites.known(records) & (records["stack"] != 0)
        if young.any():
            young &= records["t_ns"].astype(np.int64) > now_ns - HELD_NS
        if young.any():  # its whole process: each goroutine's records keep their order
            held = np.isin(records["proc"]["pid"], np.unique(records["proc"]["pid"][young]))
            held[held] = _last(records["proc"]["pid"][held])
            held[np.flatnonzero(held)[:-HELD]] = False
            self._records, records = [only(records, held)], only(records, ~held)
        yield from self._ready_batches(records)

    def _ready_batches(self, records: np.ndarray) -> Iterator[Batch]:
        self._waits.feed(records)
        yield from at_once(records, self._sites.called)

    def finish(self, now_ns: int, wait: Callable[[float], None]) -> Iterator[Batch]:
        """Rows of the held decisions, at the end of a run."""
        del wait
        yield from self.drain(now_ns + HELD_NS)

    def close(self) -> None:
        """Nothing to close."""


def _last(pids: np.ndarray) -> np.ndarray:
    """Which are among the last ``HELD_A_PROCESS`` of their process, bool (n,)."""
    order = np.argsort(pids, kind="stable")
    ends = np.flatnonzero(np.append(pids[order][1:] != pids[order][:-1], True))
    kept = np.zeros(len(pids), np.bool_)
    kept[order] = np.repeat(ends, np.diff(ends, prepend=-1)) - np.arange(len(pids)) < HELD_A_PROCESS
    return kept
