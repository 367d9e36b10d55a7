"""Two network namespaces joined by a pair of TUN devices, whose packets a forwarder delays and drops: real TCP over a real
round-trip time and real loss, without the kernel's netem.

    with Wire(delay_s=0.02) as wire:
        with wire.left.entered(): client = socket.socket()
        with wire.right.entered(): server = socket.create_server((wire.RIGHT, 0))
"""

from __future__ import annotations

import fcntl
import heapq
import os
import select
import struct
import threading
import time
from collections.abc import Callable

from tests.lab.netns import Namespace

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x1, 0x1000
SYN, ACK = 0x02, 0x10


class Packet:
    """What a drop rule sees. to_right: its direction; flags: the TCP header's; payload_bytes: TCP payload."""

    def __init__(self, data: bytes, to_right: bool) -> None:
        self.to_right = to_right
        version = data[0] >> 4
        at = (data[0] & 15) * 4 if version == 4 else 40
        self.protocol = data[9] if version == 4 else data[6]
        self.flags, self.payload_bytes = 0, 0
        if self.protocol == 6:
            self.flags = data[at + 13]
            self.payload_bytes = len(data) - at - (data[at + 12] >> 4) * 4

    @property
    def kind(self) -> str:
        """``syn``, ``synack``, ``data`` or ``other``."""
        if self.flags & SYN:
            return "synack" if self.flags & ACK else "syn"
        return "data" if self.payload_bytes else "other"


def first(kind: str, n: int) -> Callable[[Packet], bool]:
    """A rule that drops the first n packets of a kind."""
    left = n

    def rule(packet: Packet) -> bool:
        nonlocal left
        if packet.kind != kind or left == 0:
            return False
        left -= 1
        return True

    return rule


def every(kind: str, n: int) -> Callable[[Packet], bool]:
    """A rule that drops each n-th packet of a kind."""
    seen = 0

    def rule(packet: Packet) -> bool:
        nonlocal seen
        seen += packet.kind == kind
        return packet.kind == kind and seen % n == 0

    return rule


class Wire:
    """The pair. delay_s: one way; drop: called for each packet, true drops it. ``dropped`` counts."""

    LEFT, RIGHT = "10.77.0.1", "10.77.0.2"
    LEFT6, RIGHT6 = "fd77::1", "fd77::2"
    #: On the wire's subnet, belongs to nobody.
    NOBODY = "10.77.0.77"

    def __init__(self, delay_s: float = 0.0, drop: Callable[[Packet], bool] = lambda packet: False) -> None:
        self.delay_s, self.drop, self.dropped = delay_s, drop, 0
        self.left, self.right = Namespace(), Namespace()
        self._fds = (self._tun(self.left, self.LEFT, self.LEFT6), self._tun(self.right, self.RIGHT, self.RIGHT6))
        self._stop_r, self._stop_w = os.pipe()
        self._thread = threading.Thread(target=self._forward, daemon=True)
        self._thread.start()

    @staticmethod
    def _tun(space: Namespace, ipv4: str, ipv6: str) -> int:
        with space.entered():
            fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", b"wire", _IFF_TUN | _IFF_NO_PI))
        space.run("ip", "addr", "add", f"{ipv4}/24", "dev", "wire")
        space.run("ip", "addr", "add", f"{ipv6}/64", "dev", "wire", "nodad")
        space.run("ip", "link", "set", "wire", "up")
        return fd

    def _forward(self) -> None:
        due: list[tuple[float, int, int, bytes]] = []
        number = 0
        readable = select.epoll()  # not select(): descriptors of a long run have numbers beyond 1,024
        for fd in (*self._fds, self._stop_r):
            readable.register(fd, select.EPOLLIN)
        while True:
            timeout = None if not due else max(0.0, due[0][0] - time.monotonic())
            ready = [fd for fd, _ in readable.poll(timeout)]
            if self._stop_r in ready:
                readable.close()
                return
            now = time.monotonic()
            for fd in ready:
                number += 1
                data = os.read(fd, 65536)
                packet = Packet(data, fd == self._fds[0])
                if self.drop(packet):
                    self.dropped += 1
                else:
                    heapq.heappush(due, (now + self.delay_s, number, self._fds[packet.to_right], data))
            while due and due[0][0] <= time.monotonic():
                _, _, fd, data = heapq.heappop(due)
                os.write(fd, data)

    def close(self) -> None:
        os.write(self._stop_w, b"x")
        self._thread.join()
        for fd in (*self._fds, self._stop_r, self._stop_w):
            os.close(fd)
        self.left.close()
        self.right.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
