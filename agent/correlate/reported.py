"""Waits that belong to a decision that a program reported itself, and long waits of processes with an active episode.

The kernel cannot know when such a decision began. So once a process has reported one, all its waits of a millisecond or
more are recorded, and only those inside a decision's interval are passed on: outside, they are idle time.

Recorded waits are kept for two seconds plus ten times their length. A call that is retried after a time-out (a lookup,
a connect) is part of a decision that may end long after its first wait. A wait is lost if its decision is reported
later than that.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from agent.batch import Batch
from agent.columns import NULL_I64
from agent.common.copies import pick, together
from agent.correlate.join import children
from agent.tables import TABLES

_KEEP_NS = 2_000_000_000
_KEEP_TIMES = 10  # so that at most ten long waits of each thread are kept at a time
_KEEP_MOST_NS = 60_000_000_000
_WATCH_NS = 600_000_000_000
#: Waits that are recorded of processes with an active episode, and of those that owe an answer for _LATE_NS, are at
#: least so long; for how long after that; and how many of both, of the latter.
_LONG_NS, _LATE_WAIT_NS, _FOLLOW_NS, _FOLLOWED, _LATE = 50_000_000, 200_000_000, 5_000_000_000, 64, 16
_LATE_NS = 250_000_000
_WAITING = TABLES["slow_syscall"].code("kind", "waiting")
_UPROBE = TABLES["limiter_decision"].code("source", "uprobe")


class WaitTargets(Protocol):
    """Processes with recorded waits (agent/probes/syscalls.py)."""

    def add(self, pid: int, least_ns: int) -> bool:
        """Waits from ``least_ns`` on are recorded. False if there is no room. Raises OSError."""
        ...

    def drop(self, pid: int) -> None: ...


class ReportedWaits:
    """A filter of batches. Has the waits of reporting processes recorded; if there is no room for all, of those that
    reported last. late: processes that answer late now, most important first; every long wait of theirs is passed on.
    Raises OSError if that is not possible.
    """

    name = "filter"

    def __init__(self, processes: WaitTargets, late: Callable[[], Iterable[int]] = tuple) -> None:
        self._processes, self._late = processes, late
        self._known: dict[int, int] = {}  # pid -> time of its last report; the least recent first
        self._followed: dict[int, tuple[int, int]] = {}  # pid -> until when, and the shortest wait
        self._waits: list[np.ndarray] = []  # in pieces as they came, since they are rarely needed
        self._decisions = TABLES["limiter_decision"].empty(0)

    def __call__(self, batch: Batch, now_ns: int) -> Iterable[Batch]:
        if batch.table == "slow_syscall":
            rows = batch.rows
            held = (rows["kind"] == _WAITING) & (rows["goroutine"] == NULL_I64)
            held &= rows["blocked_ns"] != NULL_I64  # else the last wait of a process that ended another one's
            if self._followed:
                held &= ~np.isin(rows["pid"], [*self._followed]) | (rows["duration_ns"] < _LONG_NS)
            if not held.any():
                return (batch,)
            self._waits = [piece for piece in self._waits if _kept(piece, now_ns).any()]
            self._waits.append(pick(rows, held))
            released = self._released(now_ns) if len(self._decisions) else ()
            return released if held.all() else (Batch(batch.table, pick(rows, ~held)), *released)
        if batch.table == "service_latency":
            late = (batch.rows["waiting"] > 0) & (batch.rows["max_ns"] >= _LATE_NS) & (batch.rows["pid"] > 0)
            for pid in np.unique(batch.rows["pid"][late]).tolist():
                self._follow(pid, _LATE_WAIT_NS, _LATE, now_ns)
        if batch.table == "limiter_decision":
            rows = batch.rows
            reported = (rows["source"] != _UPROBE) & (rows["pid"] != NULL_I64)
            self._watch(set(rows["pid"][reported].tolist()), now_ns)
            timed = reported & (rows["duration_ns"] >= 1_000_000)
            if timed.any():
                self._decisions = together([self._decisions, pick(rows, timed)])
                return (batch, *self._released(now_ns))
        return (batch,)

    def follow_late(self, now_ns: int) -> None:
        """Called each second. Processes are followed a little longer than they are late, since a wait is recorded at
        its end.
        """
        for pid in self._late():
            self._follow(pid, _LONG_NS, _FOLLOWED, now_ns)
        for pid in [pid for pid, (until_ns, _) in self._followed.items() if until_ns < now_ns]:
            del self._followed[pid]
            if pid not in self._known:
                self._processes.drop(pid)

    def followed(self) -> list[int]:
        """The processes that are late now, or were a moment ago."""
        return [*self._followed]

    def _follow(self, pid: int, least_ns: int, most: int, now_ns: int) -> None:
        before_ns = self._followed.get(pid, (0, 0))[1]
        if not before_ns and len(self._followed) >= most:
            return
        shorter = not before_ns or least_ns < before_ns
        if pid not in self._known and shorter and not self._processes.add(pid, least_ns):
            return
        self._followed[pid] = now_ns + _FOLLOW_NS, min(before_ns or least_ns, least_ns)

    def _released(self, now_ns: int) -> Iterable[Batch]:
        """The held waits that lie in a decision; those too old to be matched are dropped."""
        waits = together(self._waits or [TABLES["slow_syscall"].empty(0)])
        inside = sorted({row for _, _, row in children(self._decisions, {"slow_syscall": waits})})
        out, rest = waits[inside], np.delete(waits, inside)
        self._waits = [pick(rest, _kept(rest, now_ns))]
        self._decisions = pick(self._decisions, self._decisions["t_ns"] > now_ns - _KEEP_NS)
        return (Batch("slow_syscall", out),) if len(out) else ()

    def _watch(self, pids: set[int], now_ns: int) -> None:
        for pid in pids:
            if self._known.pop(pid, None) is None:
                self._register(pid)
            self._known[pid] = now_ns
        if len(self._known) > 512:
            for pid in [p for p, seen in self._known.items() if seen < now_ns - _WATCH_NS]:
                self._forget(pid)

    def _register(self, pid: int) -> None:
        while not self._processes.add(pid, 0):
            if not self._known:
                raise OSError(errno.ENOSPC, "no room to record the waits of another process")
            self._forget(next(iter(self._known)))

    def _forget(self, pid: int) -> None:
        del self._known[pid]
        if pid in self._followed:
            self._processes.add(pid, self._followed[pid][1])
        else:
            self._processes.drop(pid)


def _kept(waits: np.ndarray, now_ns: int) -> np.ndarray:
    """Which of them may lie in a decision that is reported now, bool (n,)."""
    kept_ns = np.minimum(_KEEP_NS + _KEEP_TIMES * waits["duration_ns"].clip(0), _KEEP_MOST_NS)
    return np.asarray(waits["t_ns"] > now_ns - kept_ns)
