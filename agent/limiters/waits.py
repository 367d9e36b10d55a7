"""Which waits belong to a decision that a program reported itself.

The kernel cannot know when such a decision began. So once a process has reported one, all its waits of a millisecond or more
come up, and only those that lie inside a decision's interval go on: there they are the answer, elsewhere they are idleness.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np

from agent.batch import Batch
from agent.columns import NULL_I64
from agent.correlate.join import children
from agent.kernel import bpf
from agent.kernel.load import Family
from agent.tables import TABLES

_KEEP_NS = 2_000_000_000
_WAITING = TABLES["slow_syscall"].code("kind", "waiting")
_UPROBE = TABLES["limiter_decision"].code("source", "uprobe")


class Watched:
    """A filter of batches. Registers the reporting processes in the kernel's ``syscalls_watched``; up to its 1,024 entries."""

    def __init__(self, family: Family) -> None:
        self._fd = family.maps.get("syscalls_watched", -1)
        self._known: dict[int, int] = {}
        self._waits = TABLES["slow_syscall"].empty(0)
        self._decisions = TABLES["limiter_decision"].empty(0)

    def __call__(self, batch: Batch, now_ns: int) -> Iterable[Batch]:
        if batch.table == "slow_syscall":
            rows = batch.rows
            held = (rows["kind"] == _WAITING) & (rows["goroutine"] == NULL_I64)
            if not held.any():
                return (batch,)
            self._waits = np.concatenate([self._waits, rows[held]])
            return (Batch(batch.table, rows[~held]), *self._released(now_ns))
        if batch.table == "limiter_decision":
            rows = batch.rows
            reported = (rows["source"] != _UPROBE) & (rows["pid"] != NULL_I64)
            self._watch({int(pid) for pid in np.unique(rows["pid"][reported])}, now_ns)
            timed = rows[reported & (rows["duration_ns"] >= 1_000_000)]
            if len(timed):
                self._decisions = np.concatenate([self._decisions, timed])
                return (batch, *self._released(now_ns))
        return (batch,)

    def _released(self, now_ns: int) -> Iterable[Batch]:
        """The held waits that lie in a decision; what is too old to be matched is dropped."""
        inside = sorted({row for _, _, row in children(self._decisions, {"slow_syscall": self._waits})})
        out = self._waits[inside]
        rest = np.delete(self._waits, inside)
        self._waits = rest[rest["t_ns"] > now_ns - _KEEP_NS]
        self._decisions = self._decisions[self._decisions["t_ns"] > now_ns - _KEEP_NS]
        return (Batch("slow_syscall", out),) if len(out) else ()

    def _watch(self, pids: set[int], now_ns: int) -> None:
        for pid in pids - self._known.keys():
            if self._fd >= 0:
                bpf.update(self._fd, struct.pack("<I", pid), struct.pack("<Q", now_ns))
        for pid in pids:
            self._known[pid] = now_ns
        if len(self._known) > 512:
            for pid in [p for p, seen in self._known.items() if seen < now_ns - 600_000_000_000]:
                del self._known[pid]
                bpf.delete(self._fd, struct.pack("<I", pid))
