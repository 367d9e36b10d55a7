"""Listening sockets and their accept queues."""

from __future__ import annotations

import numpy as np

from agent.common.alike import most
from agent.common.copies import only
from agent.correlate.episode import Episode
from agent.correlate.rows import OfSecond, columns_of, groups, known, start_ticks
from agent.correlate.thresholds import CorrelatorConfig
from agent.correlate.watch import Watch
from agent.correlate.words import address, process, text
from agent.tables import TABLES

_ACCEPT = TABLES["socket_queue"].code("kind", "accept")
#: Columns that a symptom of listeners reads.
READS = {"socket_queue": ("netns", "kind", "saddr", "sport", "queue", "limit", "drops")}


class AcceptWatch(Watch):
    """One subject is one listening socket."""

    metrics = ("queue", "limit", "fill", "drops")

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self.names: dict[int, tuple[int, str, int, int, int, str]] = {}

    def fill(self, second: int, rows: OfSecond) -> np.ndarray:
        queues = rows["socket_queue"]
        queues = only(queues, (queues["kind"] == _ACCEPT) & (queues["limit"] > 0))
        if not len(queues):
            return np.empty(0, np.int64)
        first, group = groups([queues["pid"], start_ticks(queues), queues["netns"], queues["saddr"], queues["sport"]])
        who = columns_of(queues, first, "pid", "proc_start_ns", "netns", "saddr", "sport", "comm")
        slots = np.array([self._slot(second, *its) for its in who], np.int64)
        queue = most(np.zeros(len(first)), group, queues["queue"])
        drops = most(np.zeros(len(first)), group, np.where(known(queues["drops"]), queues["drops"], 0))
        limit = queues["limit"][first].astype(np.float64)
        return self.put(second, slots, queue=queue, limit=limit, fill=queue / limit, drops=drops)

    def _slot(self, second: int, pid: int, start_ns: int, netns: int, saddr: bytes, port: int, comm: bytes) -> int:
        pid, tick, where = pid if pid > 0 else -1, start_ns // 10_000_000, address(saddr) or "*"
        slot = self.series.slot((pid, tick, netns, where, port), second)
        if slot >= 0:
            self.names[slot] = netns, where, port, pid, tick, text(comm)
        return slot

    def describe(self, symptom: str, slot: int) -> Episode:
        netns, where, port, pid, tick, comm = self.names[slot]
        name = f"accept queue of {f'[{where}]' if ':' in where else where}:{port}"
        who = f" ({process(comm, pid)})" if pid > 0 else ""
        scope = f"{pid}/{tick}" if pid > 0 else f"{where} port {port} in {netns}"
        episode = Episode(symptom, (netns, where, port, pid), slot, name + who, scope)
        episode.keys = {"kind": "accept", "sport": port}
        episode.pid, episode.start_tick, episode.comm = pid if pid > 0 else None, tick, comm
        return episode
