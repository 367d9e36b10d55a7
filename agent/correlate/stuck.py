"""Connections on which nothing moves: what one end wrote stays unsent, poll after poll, to the byte, since the other end takes nothing.

The polls of the kernel's queues tell connections with much unread or unsent (agent/queues/sockets.py). One end's program writes faster than the other takes
all the time, on a healthy host too, but then something moves between two polls. A window that stays shut moves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.guard import Guard
from agent.correlate.late import Habits
from agent.correlate.rows import pick
from agent.correlate.thresholds import SECOND, CorrelatorConfig
from agent.correlate.view import NO_PEER, own_ends
from agent.correlate.watch import Watch
from agent.correlate.words import peer, process, text
from agent.tables import TABLES

_CONNECTION = TABLES["socket_queue"].code("kind", "connection")
_SERVER = TABLES["socket_queue"].code("role", "server")
#: What a symptom of these reads.
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
    )
}
_KEEP_S = 5


@dataclass(frozen=True)
class Jam:
    """A connection of which something is unsent. since_ns: when its last change was seen; new: whether it was there when this began to watch.
    reader: who does not read, where it is on this host, with what lies unread there."""

    writer: tuple[int, int, str]
    reader: tuple[int, int, str] | None
    netns: int
    server: bytes
    peer: bytes
    unsent: int
    unread: int
    since_ns: int
    last_ns: int
    polls: int
    new: bool

    @property
    def stuck_ns(self) -> int:
        return self.last_ns - self.since_ns


class StuckWatch(Watch):
    """One subject is a process and a server between which something does not move. stuck_ns: for how long. jams: by slot, the worst of it."""

    metrics = ("stuck_ns",)

    def __init__(self, config: CorrelatorConfig, symptoms: Sequence[Symptom] = (), guard: Guard | None = None) -> None:
        super().__init__(config, symptoms, guard)
        self.habits = Habits(self.series)
        self.jams: dict[int, Jam] = {}
        self._since_s: int | None = None
        self._known: dict[int, Jam] = {}

    def fill(self, second: int, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        polls = rows.get("socket_queue")
        self._since_s = second if self._since_s is None else self._since_s
        if polls is None:
            return np.empty(0, np.int64)
        polls = pick(polls, (polls["kind"] == _CONNECTION) & (polls["peer"] != NO_PEER))
        for t_ns in np.unique(polls["t_ns"]):
            self._poll(pick(polls, polls["t_ns"] == t_ns), second)
        self._known = {k: jam for k, jam in self._known.items() if jam.last_ns > (second - _KEEP_S) * SECOND}
        slots: dict[int, Jam] = {}
        for jam in self._known.values():
            if jam.polls < 2 or jam.last_ns < second * SECOND:
                continue
            slot = self.series.slot((jam.writer[:2], jam.netns, jam.server), second)
            if slot >= 0 and (slot not in slots or slots[slot].stuck_ns < jam.stuck_ns):
                slots[slot] = jam
        self.jams.update(slots)
        chosen = np.array(sorted(slots), np.int64)
        self.series.put(second, chosen, stuck_ns=np.array([slots[s].stuck_ns for s in chosen.tolist()], np.float64))
        return chosen

    def _poll(self, rows: np.ndarray, second: int) -> None:
        ends, assert_since = own_ends(rows), self._since_s or 0
        others = {(int(r["netns"]), end.tobytes(), r["peer"].tobytes()): r for r, end in zip(rows, ends, strict=True) if r["recv_q_bytes"] > 0}  # fmt: skip
        for row, end in zip(rows, ends, strict=True):
            if row["send_q_bytes"] <= 0 or row["pid"] <= 0:
                continue
            key, t_ns, unsent = int(row["sock_id"]), int(row["t_ns"]), int(row["send_q_bytes"])
            other = others.get((int(row["netns"]), row["peer"].tobytes(), end.tobytes()))
            before = self._known.get(key)
            reader = _who(other) if other is not None and other["pid"] > 0 else None
            unread = int(other["recv_q_bytes"]) if other is not None else 0
            if before is not None and (before.unsent, before.unread) == (unsent, unread):
                self._known[key] = replace(before, last_ns=t_ns, polls=before.polls + 1, reader=reader)
                continue
            serves = bool(row["role"] == _SERVER)
            server, far = (end.tobytes(), row["peer"].tobytes()) if serves else (row["peer"].tobytes(),) * 2
            new = before.new if before is not None else second > assert_since + self.config.warm_s
            self._known[key] = Jam(_who(row), reader, int(row["netns"]), server, far, unsent, unread, t_ns, t_ns, 1, new)  # fmt: skip

    def describe(self, symptom: str, slot: int) -> Episode:
        jam = self.jams[slot]
        (pid, tick, comm), name = jam.writer, peer(jam.peer)
        key = jam.netns, jam.peer, jam.reader or ()
        return Episode(symptom, key, slot, f"connection of {process(comm, pid)} to {name}", f"{pid} to {name}", 0, 0, "", "", 0.0, 0.0, 0.0, 0,
                       pid=pid, start_tick=tick, comm=comm)  # fmt: skip


def _who(row: np.void) -> tuple[int, int, str]:
    return int(row["pid"]), int(row["proc_start_ns"]) // 10_000_000, text(row["comm"])
