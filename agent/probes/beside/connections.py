"""Who uses a connection, as the tcp probe's kernel programs know it: who connected, or last received or sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agent.columns import NULL_I64
from agent.kernel import bpf
from agent.kernel.wire import decode

if TYPE_CHECKING:
    from agent.kernel.load import Loaded

MAP = "tcp_sockets"
_KEY = np.dtype([("address", "<u8")])
_TUPLE = np.dtype([("netns", "<u4"), ("sport", "<u2"), ("dport", "<u2"), ("saddr", "u1", 16), ("daddr", "u1", 16)])


class Connections:
    """Reads the map ``MAP`` of the tcp family: (a kernel address, struct tcp_socket). Only asked while there are rows
    to name: it may be large.
    """

    def __init__(self, loaded: Loaded) -> None:
        self._map = bpf.HashMap(loaded.families["tcp"].maps[MAP], _KEY, loaded.wire.dtype("tcp_socket"))

    def name(self, rows: np.ndarray) -> None:
        """Fills pid, tid, proc_start_ns, comm and role of rows of ``socket_queue``, by both ends and netns. Raises
        OSError.
        """
        if not len(rows):
            return
        _, sockets = self._map.read()
        sockets = sockets[np.isin(sockets["sock"]["sport"], rows["sport"])]
        sockets = sockets[np.argsort(sockets["born_ns"], kind="stable")]  # of two with the same ends, the younger lives
        mine, theirs = _ends_of_rows(rows), _ends(sockets["sock"], len(sockets))
        at = {end: i for i, end in enumerate(theirs)}
        found = np.array([at.get(end, -1) for end in mine])
        known, i = found >= 0, found[found >= 0]
        named = decode(sockets["proc"][i], "socket_queue").rows
        for column in ("pid", "tid", "proc_start_ns"):
            rows[column][known] = named[column]
        rows["comm"][known] = np.where(named["pid"] == NULL_I64, b"", named["comm"])
        role = sockets["sock"]["role"][i]
        rows["role"][known] = np.where(role < 2, role, rows["role"][known])


def _ends(source: np.ndarray, n: int) -> list[bytes]:
    ends = np.zeros(n, _TUPLE)
    for name in _TUPLE.names or ():
        ends[name] = source[name]
    raw: list[bytes] = ends.view(f"V{_TUPLE.itemsize}").tolist()
    return raw


def _ends_of_rows(rows: np.ndarray) -> list[bytes]:
    source = np.zeros(len(rows), _TUPLE)
    for name in ("netns", "sport", "dport"):
        source[name] = rows[name]
    for name in ("saddr", "daddr"):
        source[name] = np.frombuffer(rows[name].tobytes(), np.uint8).reshape(-1, 16)
    return _ends(source, len(rows))
