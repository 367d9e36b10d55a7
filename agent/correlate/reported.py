"""Which waits belong to a decision that a program reported itself.

The kernel cannot know when such a decision began. So once a process has reported one, all its waits of a millisecond or
more come up, and only those that lie inside a decision's interval go on: there they are the answer, elsewhere they are
idleness.

What comes up is kept for two seconds, and for as long again as it took ten times over: a call that is tried again after
a time-out (a name that is asked for, a connection that is made) is part of a decision that may end long after its first
wait. Where a decision is reported later than that after a wait of its ended, the wait is gone: nobody could tell it
from idleness, so it is not counted as a loss either.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from agent.batch import Batch
from agent.columns import NULL_I64
from agent.common.copies import pick, together
from agent.correlate.join import children
from agent.tables import TABLES

_KEEP_NS = 2_000_000_000
_KEEP_TIMES = 10  #: so that of each thread no more than ten long waits are kept at a time
_KEEP_MOST_NS = 60_000_000_000
_WATCH_NS = 600_000_000_000
_WAITING = TABLES["slow_syscall"].code("kind", "waiting")
_UPROBE = TABLES["limiter_decision"].code("source", "uprobe")


class WaitTargets(Protocol):
    """Those of which waits come up (agent/probes/syscalls.py)."""

    def add(self, pid: int, now_ns: int) -> bool:
        """False where there is no room. Raises OSError."""
        ...

    def drop(self, pid: int) -> None: ...


class ReportedWaits:
    """A filter of batches. Has the waits of reporting processes told; where there is no room for all, of those that
    reported last. Raises OSError where they cannot be.
    """

    name = "filter"

    def __init__(self, processes: WaitTargets) -> None:
        self._processes = processes
        self._known: dict[int, int] = {}  # pid -> when it reported last, that one first which has not for longest
        self._waits: list[np.ndarray] = []  # in the pieces they came in: mostly nobody asks for them
        self._decisions = TABLES["limiter_decision"].empty(0)

    def __call__(self, batch: Batch, now_ns: int) -> Iterable[Batch]:
        if batch.table == "slow_syscall":
            rows = batch.rows
            held = (rows["kind"] == _WAITING) & (rows["goroutine"] == NULL_I64)
            if not held.any():
                return (batch,)
            self._waits = [piece for piece in self._waits if _kept(piece, now_ns).any()]
            self._waits.append(pick(rows, held))
            released = self._released(now_ns) if len(self._decisions) else ()
            return released if held.all() else (Batch(batch.table, pick(rows, ~held)), *released)
        if batch.table == "limiter_decision":
            rows = batch.rows
            reported = (rows["source"] != _UPROBE) & (rows["pid"] != NULL_I64)
            self._watch(set(rows["pid"][reported].tolist()), now_ns)
            timed = reported & (rows["duration_ns"] >= 1_000_000)
            if timed.any():
                self._decisions = together([self._decisions, pick(rows, timed)])
                return (batch, *self._released(now_ns))
        return (batch,)

    def _released(self, now_ns: int) -> Iterable[Batch]:
        """The held waits that lie in a decision; what is too old to be matched is dropped."""
        waits = together(self._waits or [TABLES["slow_syscall"].empty(0)])
        inside = sorted({row for _, _, row in children(self._decisions, {"slow_syscall": waits})})
        out, rest = waits[inside], np.delete(waits, inside)
        self._waits = [pick(rest, _kept(rest, now_ns))]
        self._decisions = pick(self._decisions, self._decisions["t_ns"] > now_ns - _KEEP_NS)
        return (Batch("slow_syscall", out),) if len(out) else ()

    def _watch(self, pids: set[int], now_ns: int) -> None:
        for pid in pids:
            if self._known.pop(pid, None) is None:
                self._register(pid, now_ns)
            self._known[pid] = now_ns
        if len(self._known) > 512:
            for pid in [p for p, seen in self._known.items() if seen < now_ns - _WATCH_NS]:
                self._forget(pid)

    def _register(self, pid: int, now_ns: int) -> None:
        while not self._processes.add(pid, now_ns):
            if not self._known:
                raise OSError(errno.ENOSPC, "no room for a process whose waits are to be told")
            self._forget(next(iter(self._known)))

    def _forget(self, pid: int) -> None:
        del self._known[pid]
        self._processes.drop(pid)


def _kept(waits: np.ndarray, now_ns: int) -> np.ndarray:
    """Which of them a decision that is reported now may hold, bool (n,)."""
    kept_ns = np.minimum(_KEEP_NS + _KEEP_TIMES * waits["duration_ns"].clip(0), _KEEP_MOST_NS)
    return np.asarray(waits["t_ns"] > now_ns - kept_ns)
