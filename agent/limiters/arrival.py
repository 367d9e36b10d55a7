"""When a datagram was sent, however late it is read: the kernel stamps it on its way into the queue."""

from __future__ import annotations

import socket
import struct
import time

_SO_TIMESTAMPNS = 35  # include/uapi/asm-generic/socket.h; Python has no name for it
_TIMESPEC = struct.Struct("qq")
#: More than clocks move apart between two drains unless one is stepped.
_STEADY_NS = 1_000_000
#: A reading of both clocks that nothing interrupted.
_CLOSE_NS = 5_000

#: What a stamp takes of the buffer for ancillary data.
STAMP_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)


def stamp(server: socket.socket) -> None:
    """Has the kernel stamp what comes to a Unix socket. Costs other sockets nothing (net/core/sock.c, sock_needs_netstamp). Raises OSError."""
    server.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


class Arrival:
    """Stamps (CLOCK_REALTIME) as CLOCK_BOOTTIME ns.

    A stamp counts only where the two clocks kept their distance since the queue was last seen empty, and lies between then and
    the reading; after a step the time of reading has to do.
    """

    def __init__(self) -> None:
        self._empty_ns, self._distance_ns = self._now_ns, self._now_distance_ns = _clocks()

    def begin(self) -> None:
        """Before a drain."""
        self._now_ns, self._now_distance_ns = _clocks()

    def emptied(self) -> None:
        """The drain that began last has left nothing behind."""
        self._empty_ns, self._distance_ns = self._now_ns, self._now_distance_ns

    def sent_ns(self, ancillary: list[tuple[int, int, bytes]], read_ns: int) -> int:
        """CLOCK_BOOTTIME ns of sending; ``read_ns`` where it is not known."""
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS) and abs(self._now_distance_ns - self._distance_ns) < _STEADY_NS:
                seconds, ns = _TIMESPEC.unpack(data)
                stamped_ns = int(seconds) * 1_000_000_000 + int(ns)
                return min(max(stamped_ns - self._now_distance_ns, self._empty_ns), read_ns)
        return read_ns


def _clocks() -> tuple[int, int]:
    """(CLOCK_BOOTTIME, CLOCK_REALTIME minus that), ns: the closest of some readings, since a thread may lose its processor within one."""
    best = (1 << 62, 0, 0)
    for _ in range(5):
        before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        real = time.clock_gettime_ns(time.CLOCK_REALTIME)
        after = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        best = min(best, (after - before, before, real - (before + after) // 2))
        if after - before < _CLOSE_NS:
            break
    return best[1], best[2]
