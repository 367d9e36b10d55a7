"""A pair of TUN devices, whose packets a forwarder delays and drops: real TCP over a real round-trip time and real
loss, without the kernel's netem.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import select
import struct
import time
from collections.abc import Callable, Sequence

from agent.lab.stage.netns import Namespace

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x1, 0x1000
#: Name of the TUN device in each namespace.
DEVICE = "wire"
SYN, ACK = 0x02, 0x10
#: A packet to send: after how many seconds, which bytes, in which direction.
Sent = tuple[float, bytes, bool]


class Packet:
    """The input of a rule. to_right: its direction; protocol: IP's number; ports: source and destination (TCP, UDP);
    flags: the TCP header's; payload_bytes: TCP payload.
    """

    def __init__(self, data: bytes, to_right: bool) -> None:
        self.data, self.to_right = data, to_right
        version = data[0] >> 4
        at = (data[0] & 15) * 4 if version == 4 else 40
        self.protocol = data[9] if version == 4 else data[6]
        self.flags, self.payload_bytes = 0, 0
        self.ports: tuple[int, ...] = (
            struct.unpack_from("!2H", data, at) if self.protocol in (6, 17) and len(data) >= at + 4 else ()
        )
        if self.protocol == 6:
            self.flags = data[at + 13]
            self.payload_bytes = len(data) - at - (data[at + 12] >> 4) * 4

    @property
    def kind(self) -> str:
        """``syn``, ``synack``, ``data`` or ``other``."""
        if self.flags & SYN:
            return "synack" if self.flags & ACK else "syn"
        return "data" if self.payload_bytes else "other"


class Forwarder:
    """Carries packets between two TUN devices until it is stopped. treat: called for each packet; returns what
    to send.
    """

    def __init__(self, fds: tuple[int, int], treat: Callable[[Packet], Sequence[Sent]]) -> None:
        self._fds, self._treat = fds, treat

    def run(self, stop: int) -> None:
        """Runs until ``stop`` is readable."""
        due: list[tuple[float, int, int, bytes]] = []
        number = 0
        readable = select.epoll()  # not select(): descriptors of a long run have numbers beyond 1,024
        for fd in (*self._fds, stop):
            readable.register(fd, select.EPOLLIN)
        while True:
            timeout = None if not due else max(0.0, due[0][0] - time.monotonic())
            ready = [fd for fd, _ in readable.poll(timeout)]
            if stop in ready:
                readable.close()
                return
            now = time.monotonic()
            for fd in ready:
                data = os.read(fd, 65536)
                packet = Packet(data, fd == self._fds[0])
                for delay_s, sent, to_right in self._treat(packet):
                    number += 1
                    heapq.heappush(due, (now + delay_s, number, self._fds[to_right], sent))
            while due and due[0][0] <= time.monotonic():
                _, _, fd, data = heapq.heappop(due)
                os.write(fd, data)


def tun(space: Namespace, ipv4: str, ipv6: str) -> int:
    """Makes a TUN device in a namespace, with its addresses; returns its descriptor."""
    with space.entered():
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
    space.run("ip", "addr", "add", f"{ipv4}/24", "dev", DEVICE)
    space.run("ip", "addr", "add", f"{ipv6}/64", "dev", DEVICE, "nodad")
    space.run("ip", "link", "set", DEVICE, "up")
    return fd
