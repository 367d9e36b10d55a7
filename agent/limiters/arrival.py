"""When a datagram was sent, even if it is read late: the kernel stamps it when it is queued."""

from __future__ import annotations

import socket
import struct
import time
from typing import NamedTuple

import numpy as np

from agent.common.clocks import apart

#: SO_TIMESTAMPNS, and SCM_TIMESTAMPNS: include/uapi/asm-generic/socket.h; Python has no name for them.
STAMP_TYPE = 35
_SOCKET_LEVEL = int(socket.SOL_SOCKET)
_TIMESPEC = struct.Struct("qq")
#: Clocks drift apart by less than this between two drains, unless one is stepped.
_STEADY_NS = 1_000_000
#: Upper bound of an uninterrupted reading of both clocks.
_CLOSE_NS = 5_000

#: Size of a stamp in the buffer for ancillary data.
STAMP_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)


def stamp(server: socket.socket) -> None:
    """Makes the kernel stamp datagrams to a Unix socket. Costs other sockets nothing (net/core/sock.c,
    sock_needs_netstamp). Raises OSError.
    """
    server.setsockopt(socket.SOL_SOCKET, STAMP_TYPE, 1)


class Clocks(NamedTuple):
    """Both clocks at one instant: CLOCK_BOOTTIME, and CLOCK_REALTIME minus it, ns."""

    boot_ns: int
    distance_ns: int


class Arrival:
    """Converts stamps (CLOCK_REALTIME) to CLOCK_BOOTTIME ns, for one queue.

    A stamp counts only if the two clocks kept their distance since the queue was last empty, and if it lies between
    then and the reading. After a step, the time of reading is used. clocks: the present reading.
    """

    def __init__(self, clocks: Clocks) -> None:
        self._empty = clocks

    def emptied(self, before: Clocks) -> None:
        """Notes that the queue was empty. before: read before that."""
        self._empty = before

    def sent_ns(self, ancillary: list[tuple[int, int, bytes]], read_ns: int, clocks: Clocks) -> int:
        """CLOCK_BOOTTIME ns of sending; ``read_ns`` if unknown. clocks: read shortly before."""
        for level, kind, data in ancillary:
            steady = abs(clocks.distance_ns - self._empty.distance_ns) < _STEADY_NS
            if kind == STAMP_TYPE and level == _SOCKET_LEVEL and steady:
                seconds, ns = _TIMESPEC.unpack(data)
                stamped_ns = int(seconds) * 1_000_000_000 + int(ns)
                return min(max(stamped_ns - clocks.distance_ns, self._empty.boot_ns), read_ns)
        return read_ns

    def all_sent_ns(self, stamp_ns: np.ndarray, read_ns: int, clocks: Clocks) -> np.ndarray:
        """The same for many messages. stamp_ns: CLOCK_REALTIME, i64 (n,), 0 for none."""
        if abs(clocks.distance_ns - self._empty.distance_ns) >= _STEADY_NS:
            return np.full(len(stamp_ns), read_ns)
        sent = np.clip(stamp_ns - clocks.distance_ns, self._empty.boot_ns, read_ns)
        return np.where(stamp_ns == 0, read_ns, sent)


def read_clocks() -> Clocks:
    """Reads both clocks now."""
    (real,) = apart(time.CLOCK_BOOTTIME, (time.CLOCK_REALTIME,), close_ns=_CLOSE_NS)
    return Clocks(real.before_ns, real.offset_ns)
