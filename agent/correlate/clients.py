"""Processes of this host that stopped talking to a server that they usually talk to all the time: by their acknowledged
segments, second by second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.correlate.local import in_netns
from agent.correlate.rows import groups, start_ticks
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View
from agent.correlate.words import process, text
from agent.tables import TABLES

#: Columns that these read.
READS = {"tcp_rtt": ("netns", "role", "peer", "samples"), "socket_queue": ("netns", "kind", "queue", "peer")}
_CLIENT = TABLES["tcp_rtt"].code("role", "client")
_BEFORE_NS, _KNOWN_NS = 20 * SECOND, 3 * SECOND
_STEADY, _LEAST, _SILENT = 0.6, 3.0, 0.2


@dataclass(frozen=True)
class Client:
    """usual: segments a second before; share: the part of that rate that it still sent."""

    pid: int
    comm: str
    usual: float
    share: float

    @property
    def silent(self) -> bool:
        return self.share <= _SILENT

    @property
    def who(self) -> str:
        return process(self.comm, self.pid)


def silent_before(view: View, server: bytes, from_ns: int, to_ns: int) -> list[Client]:
    """The processes with connections to the server that are older than the agent, and that have sent it nothing since
    it came. from_ns: when that was, to some seconds.
    """
    talks = view.rings["tcp_rtt"].between(from_ns + _KNOWN_NS, to_ns)
    active = np.unique(talks["pid"][talks["peer"] == np.frombuffer(server, "V18")[0]])
    rows = in_netns(view.older_clients(server), view.home)
    rows = rows[~np.isin(rows["pid"], active)]
    if not len(rows):
        return []
    first, _ = groups([rows["pid"], start_ticks(rows)])
    return [Client(int(rows["pid"][i]), text(rows["comm"][i]), 0.0, 0.0) for i in first]


def talking(view: View, server: bytes, from_ns: int, to_ns: int) -> list[Client]:
    """The processes that talked to the server in most of the seconds before, the most silent first. Empty if too little
    time has passed.
    """
    everybody = view.rings["tcp_rtt"].between(from_ns - _BEFORE_NS, to_ns)
    ticks = np.unique(everybody["t_ns"] // (SECOND // 10))
    since = ticks * (SECOND // 10) - from_ns
    part = (since / SECOND).clip(0, 1)  # of each tick's second, the part after the start
    rows = everybody[(everybody["role"] == _CLIENT) & (everybody["peer"] == np.frombuffer(server, "V18")[0])]
    rows = in_netns(rows, view.home)
    before_s = int(np.count_nonzero(since <= 0))
    after_s = float(part.sum())
    if not len(rows) or not before_s or not after_s:
        return []
    first, group = groups([rows["pid"], start_ticks(rows)])
    at = np.searchsorted(ticks, rows["t_ns"] // (SECOND // 10))
    n = np.zeros((len(first), len(ticks)))
    np.add.at(n, (group, at), rows["samples"])
    usual = n[:, since <= 0].mean(axis=1)
    steady = np.count_nonzero(n[:, since <= 0], axis=1) >= _STEADY * before_s
    seen = (n - usual[:, None] * (1 - part)).clip(0)[:, part > 0].sum(axis=1)
    found = [
        Client(int(rows["pid"][i]), text(rows["comm"][i]), float(usual[k]), float(seen[k] / (usual[k] * after_s)))
        for k, i in enumerate(first)
        if steady[k] and usual[k] * after_s >= _LEAST
    ]
    return sorted(found, key=lambda c: (c.share, -c.usual, c.pid))
