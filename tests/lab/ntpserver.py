"""A time server that answers as it is told: truthfully, with an offset, late in life, or not at all. Real packets on a
real socket.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable

from agent.clock.daemons.sntp import PACKET

UNIX = 2_208_988_800
#: From a truthful answer's bytes, and the request, to what is sent: any number of datagrams.
Lie = Callable[[bytes, bytes], list[bytes]]


def ntp(ns: int) -> int:
    """A 64-bit NTP timestamp of Unix ns."""
    seconds, part = divmod(ns, 10**9)
    return ((seconds + UNIX) % 2**32) << 32 | (part << 32) // 10**9


class NtpServer:
    """Answers on ``address`` until closed. ahead_ns: how much its time is ahead of ``clock``'s, which is in Unix ns:
    this host's, or another where that one is being set. lie: see above. asked: requests so far.
    """

    def __init__(
        self,
        address: tuple[str, int] = ("127.0.0.1", 0),
        *,
        ahead_ns: int = 0,
        stratum: int = 2,
        leap: int = 0,
        lie: Lie | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.ahead_ns, self.stratum, self.leap, self.lie, self.clock = ahead_ns, stratum, leap, lie, clock
        self.asked: list[bytes] = []
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.sock.bind(address)
        self.sock.settimeout(0.05)
        self.where = "{}:{}".format(*self.sock.getsockname())
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._closed.is_set():
            try:
                request, client = self.sock.recvfrom(2048)
            except TimeoutError:
                continue
            received = self.clock() + self.ahead_ns
            self.asked.append(request)
            answer = self.answer(request, received)
            for datagram in self.lie(answer, request) if self.lie else [answer]:
                self.sock.sendto(datagram, client)

    def answer(self, request: bytes, received: int) -> bytes:
        origin = struct.unpack_from(">Q", request, 40)[0]
        sent = ntp(self.clock() + self.ahead_ns)
        return PACKET.pack(
            self.leap << 6 | (request[0] >> 3 & 7) << 3 | 4,
            self.stratum,
            3,
            -20,
            1 << 4,
            1 << 5,
            b"\x0a\0\0\x01",
            ntp(received - 10**9),
            origin,
            ntp(received),
            sent,
        )

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self.sock.close()
