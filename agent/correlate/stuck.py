"""Connections without progress, because the other end's window stays closed: it reads nothing of what was written.

The polls of the kernel's queues list connections with much unread or unsent data (agent/queues/sockets.py). For each
they give the bytes that the other end has acknowledged, and how long the kernel had data to send and no window for it.
A writer that is faster than its reader is normal on a healthy host, but then something is acknowledged between two
polls. Lost data waits for an acknowledgement, not for a window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from agent.common.copies import pick
from agent.correlate.episode import Episode
from agent.correlate.rows import OfSecond, known
from agent.correlate.thresholds import SECOND, CorrelatorConfig
from agent.correlate.view import NO_PEER, own_ends
from agent.correlate.watch import Watch
from agent.correlate.words import identity, peer, process
from agent.tables import TABLES

_CONNECTION = TABLES["socket_queue"].code("kind", "connection")
_SERVER = TABLES["socket_queue"].code("role", "server")
#: Columns that a symptom of these reads.
READS = {
    "socket_queue": (
        "sock_id",
        "netns",
        "kind",
        "role",
        "saddr",
        "sport",
        "peer",
        "recv_q_bytes",
        "send_q_bytes",
        "acked_bytes",
        "shut_ns",
    )
}
_KEEP_S = 5
_LITTLE = 16  # polls in which, at the rate since the last one, not all waiting data would be read
_MOST = 0.8  # of the time between two polls, that the window must have been closed


@dataclass(frozen=True)
class Jam:
    """A connection with unsent data, as of the last poll. stuck_ns: how long it has made no progress for want of a
    window; since_ns: when that began. new: whether it began while this watch was running. reader: the process that does
    not read, if it is on this host; unread: the data that it has not read.
    """

    writer: tuple[int, int, str]
    reader: tuple[int, int, str] | None
    netns: int
    server: bytes
    peer: bytes
    unsent: int
    unread: int
    acked: int
    shut_ns: int
    since_ns: int
    last_ns: int
    stuck_ns: int
    new: bool


class StuckWatch(Watch):
    """One subject is a process and a server with a connection without progress. stuck_ns: for how long. jams: by slot,
    the worst connection.
    """

    metrics = ("stuck_ns",)

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self.jams: dict[int, Jam] = {}
        self._since_s: int | None = None
        self._known: dict[int, Jam] = {}

    def fill(self, second: int, rows: OfSecond) -> np.ndarray:
        polls = rows["socket_queue"]
        self._since_s = second if self._since_s is None else self._since_s
        if not len(polls):
            return np.empty(0, np.int64)
        polls = pick(polls, (polls["kind"] == _CONNECTION) & (polls["peer"] != NO_PEER))
        if not len(polls) and not self._known:
            return np.empty(0, np.int64)
        for t_ns in np.unique(polls["t_ns"]):
            self._poll(pick(polls, polls["t_ns"] == t_ns), second)
        self._known = {k: jam for k, jam in self._known.items() if jam.last_ns > (second - _KEEP_S) * SECOND}
        slots: dict[int, Jam] = {}
        for jam in self._known.values():
            if not jam.stuck_ns or jam.last_ns < second * SECOND:
                continue
            slot = self.series.slot((jam.writer[:2], jam.netns, jam.server), second)
            if slot >= 0 and (slot not in slots or slots[slot].stuck_ns < jam.stuck_ns):
                slots[slot] = jam
        self.jams.update(slots)
        chosen = np.array(sorted(slots), np.int64)
        self.series.put(second, chosen, stuck_ns=np.array([slots[s].stuck_ns for s in chosen.tolist()], np.float64))
        return chosen

    def _poll(self, rows: np.ndarray, second: int) -> None:
        ends, began = own_ends(rows), self._since_s or 0
        others = {
            (int(r["netns"]), end.tobytes(), r["peer"].tobytes()): r
            for r, end in zip(rows, ends, strict=True)
            if r["recv_q_bytes"] > 0
        }
        for row, end in zip(rows, ends, strict=True):
            if row["send_q_bytes"] <= 0 or row["pid"] <= 0 or not known(row["shut_ns"]):
                continue
            key, t_ns, shut_ns, acked = (int(row[name]) for name in ("sock_id", "t_ns", "shut_ns", "acked_bytes"))
            other = others.get((int(row["netns"]), row["peer"].tobytes(), end.tobytes()))
            before = self._known.get(key)
            reader = identity(other) if other is not None and other["pid"] > 0 else None
            unread = int(other["recv_q_bytes"]) if other is not None else 0
            shut = shut_ns - before.shut_ns if before is not None else 0
            if (
                before is not None
                and _LITTLE * (acked - before.acked) <= row["send_q_bytes"]
                and shut >= _MOST * (t_ns - before.last_ns)
            ):
                since_ns = before.since_ns if before.stuck_ns else max(before.last_ns, t_ns - shut)
                self._known[key] = replace(
                    before,
                    reader=reader,
                    unread=unread,
                    unsent=int(row["send_q_bytes"]),
                    acked=acked,
                    shut_ns=shut_ns,
                    since_ns=since_ns,
                    last_ns=t_ns,
                    stuck_ns=t_ns - since_ns,
                )
                continue
            serves = bool(row["role"] == _SERVER)
            server, far = (end.tobytes(), row["peer"].tobytes()) if serves else (row["peer"].tobytes(),) * 2
            new = before is not None or second > began + self.config.warm_s
            self._known[key] = Jam(
                identity(row),
                reader,
                int(row["netns"]),
                server,
                far,
                int(row["send_q_bytes"]),
                unread,
                acked,
                shut_ns,
                t_ns,
                t_ns,
                0,
                new,
            )

    def describe(self, symptom: str, slot: int) -> Episode:
        jam = self.jams[slot]
        (pid, tick, comm), name = jam.writer, peer(jam.peer)
        key = jam.netns, jam.peer, jam.reader or ()
        subject = f"connection of {process(comm, pid)} to {name}"
        return Episode(symptom, key, slot, subject, f"{pid} to {name}", pid=pid, start_tick=tick, comm=comm)
