"""The kernel's own queues: accept queues, connections with much unread or unsent data, devices' queueing disciplines.

Read without privilege, and only for the agent's own network namespace: entering another one (setns) needs
CAP_SYS_ADMIN, which the agent does not have. Polled by ``QueuePoller``.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agent.batch import Batch
from agent.columns import NULL_I64
from agent.common.address import V4_MAPPED
from agent.common.fairness import UpperBound
from agent.queues.netlink import ESTABLISHED, LISTEN, TC_H_ROOT, progress, qdiscs, tcp_sockets
from agent.queues.older import OlderSockets
from agent.tables import TABLES

TABLE = TABLES["socket_queue"]
#: Connections to servers that are older than the agent and have rows at its start.
MOST_OLDER = 4096
#: While no TCP segment comes or goes and no queue holds anything, sockets are listed so often.
REPEATED_NS = 5_000_000_000
BOUNDS = (
    UpperBound(
        "rows",
        "TCP clients that are older than the agent",
        MOST_OLDER,
        "a client that is silent is not known to be one",
        "-",
    ),
)
#: Fills columns of rows of TABLE in place.
Name = Callable[[np.ndarray], None]


class SocketQueues:
    """``poll`` returns one socket_queue row for each listening socket, backed-up connection and device.

    - accept: queue and limit are the connections that wait for accept() and the backlog (the kernel accepts one more).
      drops: connections that this socket dropped. overflows: TcpExt ListenOverflows, which the kernel counts for the
      whole namespace.
    - connection: only connections with at least ``threshold_bytes`` unread or unsent, the ``top`` largest. queue is the
      larger of recv_q_bytes (unread by the program) and send_q_bytes (not acknowledged by the peer). acked_bytes and
      shut_ns are read for each of them.
    - qdisc: a device's root discipline. queue in packets, send_q_bytes is its backlog, drops.

    The first poll has a row of each older connection to a server, too, with empty queues: who is connected to whom is
    known before the next segment.

    max_listeners bounds the accept rows; sockets with waiting connections come first. name_owners and name_users fill
    in the process that listens or that uses a connection (both agent.probes.tcp); older does both for older sockets
    (agent.queues.older), and comes first for listeners, since it knows all processes that hold them. None if there is
    no such function.

    To list the sockets, the kernel walks a table of hundreds of thousands of buckets, 5 ms of processor time. While all
    queues are empty and no segment is sent or received, no queue can fill, and the last rows are repeated.
    """

    name = "socket queues"

    def __init__(
        self,
        threshold_bytes: int = 65536,
        top: int = 32,
        max_listeners: int = 256,
        name_owners: Name | None = None,
        name_users: Name | None = None,
        older: OlderSockets | None = None,
    ) -> None:
        self._threshold_bytes, self._top, self._max_listeners = threshold_bytes, top, max_listeners
        of_older = older.name if older is not None else None
        self._names = [
            (name, which)
            for name, which in ((of_older, (0,)), (name_owners, (0,)), (name_users, (1,)), (of_older, (1,)))
            if name is not None
        ]
        self._netns = os.stat("/proc/self/ns/net").st_ino
        self._segments = self._listed_ns = 0
        self._empty: np.ndarray | None = None  # the rows of the last list, if all queues were empty
        self._older = older  # until their connections have rows

    def poll(self) -> list[Batch]:
        """Raises OSError if the kernel refuses the dump."""
        t_ns, segments = time.clock_gettime_ns(time.CLOCK_BOOTTIME), _segments()
        moved, self._segments = segments != self._segments, segments
        rows = self._empty
        if rows is None or moved or t_ns - self._listed_ns >= REPEATED_NS:
            self._listed_ns, rows = t_ns, self._list()
        rows = np.concatenate([rows, _devices()])
        rows["t_ns"], rows["netns"] = t_ns, self._netns
        return [Batch(TABLE.name, rows)]

    def _list(self) -> np.ndarray:
        """Listening sockets and backed-up connections, without a time."""
        sockets, cgroups, drops = tcp_sockets()
        listening = sockets["state"] == LISTEN
        accept = np.flatnonzero(listening)
        accept = accept[np.argsort(sockets["rqueue"][accept], kind="stable")[::-1][: self._max_listeners]]
        backlog = np.where(listening, 0, np.maximum(sockets["rqueue"], sockets["wqueue"]))
        backed_up = np.flatnonzero((backlog >= self._threshold_bytes) & ~listening)
        backed_up = backed_up[np.argsort(backlog[backed_up])[::-1][: self._top]]
        batches = [
            self._accept(sockets[accept], cgroups[accept], drops[accept]),
            self._connections(sockets, cgroups, backed_up, listening),
        ]
        for rows in batches:
            rows["netns"] = self._netns
        for name, which in self._names:
            for i in which:
                name(batches[i])
        rows = np.concatenate(batches)
        self._empty = None if backlog.any() or rows["queue"].any() else rows
        if self._older is not None:
            others = np.delete(np.arange(len(sockets)), backed_up)
            rows = np.concatenate([rows, _of_older(self._older, sockets[others], cgroups[others])])
            self._older = None
        return rows

    def close(self) -> None:
        """Nothing is kept open between polls."""

    def _accept(self, sockets: np.ndarray, cgroups: npt.NDArray[np.int64], drops: npt.NDArray[np.int64]) -> np.ndarray:
        rows = _rows("accept", sockets, cgroups)
        rows["queue"], rows["limit"] = sockets["rqueue"], sockets["wqueue"]
        rows["overflows"], rows["drops"] = (
            _listen_overflows(Path("/proc/self/net/netstat").read_text()),
            np.where(drops < 0, NULL_I64, drops),
        )
        rows["role"] = TABLE.code("role", "server")
        return rows

    def _connections(
        self,
        sockets: np.ndarray,
        cgroups: npt.NDArray[np.int64],
        chosen: npt.NDArray[np.int64],
        listening: npt.NDArray[np.bool_],
    ) -> np.ndarray:
        connections = sockets[chosen]
        rows = _between(connections, cgroups[chosen], sockets["sport"][listening])
        rows["recv_q_bytes"], rows["send_q_bytes"] = connections["rqueue"], connections["wqueue"]
        rows["queue"] = np.maximum(connections["rqueue"], connections["wqueue"])
        moved = progress(connections)
        rows["acked_bytes"] = np.where(moved[:, 0] < 0, NULL_I64, moved[:, 0])
        rows["shut_ns"] = np.where(moved[:, 1] < 0, NULL_I64, moved[:, 1] * 1000)
        return rows


def _of_older(older: OlderSockets, sockets: np.ndarray, cgroups: npt.NDArray[np.int64]) -> np.ndarray:
    """Rows of the connections to servers among these sockets that are older than the agent."""
    listening = sockets["sport"][sockets["state"] == LISTEN]
    clients = (sockets["state"] == ESTABLISHED) & ~np.isin(sockets["sport"], listening)
    some = np.flatnonzero(clients & np.isin(sockets["cookie"], older.cookies))[:MOST_OLDER]
    rows = _between(sockets[some], cgroups[some], listening)
    rows["queue"] = rows["recv_q_bytes"] = rows["send_q_bytes"] = 0
    older.name(rows)
    return np.asarray(rows[rows["pid"] != NULL_I64])


def _between(sockets: np.ndarray, cgroups: npt.NDArray[np.int64], listening: npt.NDArray[np.int64]) -> np.ndarray:
    """Rows of these connections with their ends. listening: ports."""
    rows = _rows("connection", sockets, cgroups)
    rows["dport"], daddr = sockets["dport"], _addresses(sockets, "dst")
    rows["daddr"] = _void(daddr, "V16")
    rows["peer"] = _void(np.hstack([daddr, sockets["dport"].astype("<u2")[:, None].view(np.uint8)]), "V18")
    server = np.isin(sockets["sport"], listening)
    rows["role"] = np.where(server, TABLE.code("role", "server"), TABLE.code("role", "client"))
    return rows


def _rows(kind: str, sockets: np.ndarray, cgroups: npt.NDArray[np.int64]) -> np.ndarray:
    rows = TABLE.empty(len(sockets))
    rows["kind"] = TABLE.code("kind", kind)
    rows["sock_id"], rows["sport"] = sockets["cookie"], sockets["sport"]
    rows["cgroup_id"] = np.where(cgroups < 0, NULL_I64, cgroups)
    rows["family"] = np.where(
        sockets["family"] == socket.AF_INET, TABLE.code("family", "ipv4"), TABLE.code("family", "ipv6")
    )
    rows["saddr"] = _void(_addresses(sockets, "src"), "V16")
    return rows


def _addresses(sockets: np.ndarray, field: str) -> npt.NDArray[np.uint8]:
    """Shape (n, 16); the kernel gives IPv4 in the first 4 bytes."""
    addresses = np.ascontiguousarray(sockets[field])
    v4 = sockets["family"] == socket.AF_INET
    addresses[v4] = np.hstack(
        [np.broadcast_to(np.frombuffer(V4_MAPPED, np.uint8), (int(v4.sum()), 12)), addresses[v4, :4]]
    )
    return addresses


def _void(data: npt.NDArray[np.uint8], dtype: str) -> np.ndarray:
    return np.ascontiguousarray(data).view(dtype)[:, 0] if len(data) else np.empty(0, dtype)


def _devices() -> np.ndarray:
    roots = [q for q in qdiscs() if q.parent == TC_H_ROOT]
    rows = TABLE.empty(len(roots))
    rows["kind"] = TABLE.code("kind", "qdisc")
    for column, values in {
        "queue": [q.packets for q in roots],
        "send_q_bytes": [q.backlog_bytes for q in roots],
        "drops": [q.drops for q in roots],
        "device": [_device(q.ifindex) for q in roots],
    }.items():
        rows[column] = values
    return rows


def _device(ifindex: int) -> bytes:
    try:
        return socket.if_indextoname(ifindex).encode()
    except OSError:  # removed since the dump
        return str(ifindex).encode()


def _segments() -> int:
    """TCP segments that this namespace received and sent, of both families (InSegs and OutSegs of RFC 4022)."""
    names, values = (
        line.split() for line in Path("/proc/self/net/snmp").read_text().splitlines() if line.startswith("Tcp:")
    )
    counts = dict(zip(names, values, strict=True))
    return int(counts["InSegs"]) + int(counts["OutSegs"])


def _listen_overflows(netstat: str) -> int:
    """ListenOverflows from /proc/net/netstat's text."""
    names, values = (line.split() for line in netstat.splitlines() if line.startswith("TcpExt:"))
    return int(dict(zip(names, values, strict=True))["ListenOverflows"])
