"""Processes that look up names that resolved before, second by second: successful, slow and failed lookups."""

from __future__ import annotations

import math

import numpy as np

from agent.common.alike import most
from agent.common.copies import pick
from agent.common.recent import Recent
from agent.correlate.episode import Episode
from agent.correlate.rows import OfSecond, columns_of, groups, start_ticks
from agent.correlate.thresholds import CorrelatorConfig
from agent.correlate.view import NO_PEER
from agent.correlate.watch import Watch
from agent.correlate.words import process, text
from agent.tables import TABLES

_OK, _NODATA = (TABLES["dns_lookup"].code("result", name) for name in ("ok", "nodata"))
#: Columns that a symptom of lookups reads.
READS = {"dns_lookup": ("peer", "name", "result", "duration_ns")}
SLOW_NS = 500_000_000
_NAMES, _A_SECOND = 4096, 256  # remembered; evaluated in a second
_NO_CLIENT = NO_PEER[0].tobytes()
_Name = tuple[int, int, bytes]


class LookupWatch(Watch):
    """One subject is a process. ok: successful lookups; lost: failed ones, of names that it knew before. A failed
    lookup of a name that never existed is no failure. slow: successful lookups that took ``SLOW_NS``; longest_ns: the
    slowest.
    """

    metrics = ("ok", "lost", "slow", "longest_ns")

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self._known = Recent[_Name, bytes](_NAMES)  # the server that answered
        self._who: dict[int, tuple[int, int, str]] = {}
        self._clients: dict[int, bytes] = {}

    def fill(self, second: int, rows: OfSecond) -> np.ndarray:
        done = rows["dns_lookup"]
        done = pick(done, (done["result"] != _NODATA) & (done["name"] != b"") & (done["pid"] > 0))
        if not len(done):
            return np.empty(0, np.int64)
        well = done["result"] == _OK
        first, group = groups([done["pid"], start_ticks(done), done["name"], well])
        slow = np.bincount(group, done["duration_ns"] >= SLOW_NS)
        longest = most(np.zeros(len(first)), group, done["duration_ns"])
        found: dict[int, list[float]] = {}
        its = columns_of(done, first[:_A_SECOND], "pid", "proc_start_ns", "name", "result", "peer", "comm")
        rows_of = zip(its, np.bincount(group).tolist(), slow.tolist(), longest.tolist(), strict=False)
        for (pid, start_ns, name, result, raw, comm), n, slow_ones, slowest in rows_of:
            tick, good = start_ns // 10_000_000, result == _OK
            server = self._known.pop((pid, tick, name), None)
            if good and (server is None or raw != _NO_CLIENT):
                server = raw
            if server is None:
                continue
            self._known[pid, tick, name] = server
            slot = self.series.slot((pid, tick), second)
            if slot >= 0:
                self._who[slot], self._clients[slot] = (pid, tick, text(comm)), server
                counts = found.setdefault(slot, [0, 0, 0, math.nan])
                counts[0 if good else 1] += n
                if good:
                    counts[2] += slow_ones
                    counts[3] = slowest if math.isnan(counts[3]) else max(counts[3], slowest)
        slots = np.array([*found], np.int64)
        values = np.array([*found.values()], np.float64).reshape(-1, 4)
        self.series.put(second, slots, **dict(zip(self.metrics, values.T, strict=True)))
        return slots

    def describe(self, symptom: str, slot: int) -> Episode:
        pid, tick, comm = self._who[slot]
        key = pid, tick, self._clients.get(slot, _NO_CLIENT)
        return Episode(symptom, key, slot, process(comm, pid), f"{pid}/{tick}", pid=pid, start_tick=tick, comm=comm)
