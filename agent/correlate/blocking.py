"""Processes, and how long their threads were blocked in system calls that wait for no input: files, locks, full
pipes.
"""

from __future__ import annotations

import numpy as np

from agent.common.alike import most
from agent.common.copies import only
from agent.correlate.episode import Episode
from agent.correlate.rows import OfSecond, columns_of, groups, start_ticks
from agent.correlate.series import Series
from agent.correlate.thresholds import SECOND, CorrelatorConfig
from agent.correlate.watch import Watch
from agent.correlate.words import process, text
from agent.tables import TABLES

#: Columns that a symptom of these reads.
READS = {"syscall_latency": ("basis", "kind", "interval_ns", "count", "sum_ns")}
_BLOCKED = TABLES["syscall_latency"].code("basis", "blocked")
_SLOW = TABLES["syscall_latency"].code("kind", "slow")
_YOUNG_NS = 5 * SECOND  # builds and scripts start more processes than there are CPUs, each for a short time
_ITSELF = b"tickscope"  # the agent waits for the kernel when it detaches programs, which impacts nobody


class BlockedWatch(Watch):
    """One subject is a process that blocks in any kind of call. blocked_ns: blocked time a second, all threads
    together; each_ns: per call, NaN without any.
    """

    metrics = ("blocked_ns", "each_ns")

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self.series = Series(self.metrics, 2 * config.subjects)
        self._names: dict[int, tuple[int, int, str]] = {}

    def fill(self, second: int, rows: OfSecond) -> np.ndarray:
        sums = rows["syscall_latency"]
        young = (second + 1) * SECOND - sums["proc_start_ns"] < _YOUNG_NS
        sums = only(sums, (sums["basis"] == _BLOCKED) & (sums["pid"] > 0) & (sums["comm"] != _ITSELF) & ~young)
        if not len(sums):
            return np.empty(0, np.int64)
        first, group = groups([sums["pid"], start_ticks(sums)])
        who = columns_of(sums, first, "pid", "proc_start_ns", "comm")
        slots = np.array([self._slot(second, *its) for its in who], np.int64)
        held = sums["kind"] == _SLOW
        lasted = most(np.zeros(len(first)), group, sums["interval_ns"])
        total, n = (np.bincount(group, np.where(held, sums[name], 0)) for name in ("sum_ns", "count"))
        blocked = total / np.maximum(lasted / SECOND, 1.0)
        each = np.where(n > 0, total / np.maximum(n, 1), np.nan)
        return self.put(second, slots, blocked_ns=blocked, each_ns=each)

    def _slot(self, second: int, pid: int, start_ns: int, comm: bytes) -> int:
        tick = start_ns // 10_000_000
        slot = self.series.slot((pid, tick), second)
        if slot >= 0:
            self._names[slot] = pid, tick, text(comm)
        return slot

    def describe(self, symptom: str, slot: int) -> Episode:
        pid, tick, comm = self._names[slot]
        subject, scope = process(comm, pid), f"{pid}/{tick}"
        return Episode(symptom, (pid, tick), slot, subject, scope, pid=pid, start_tick=tick, comm=comm)
