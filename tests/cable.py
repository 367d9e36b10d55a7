"""Two network namespaces joined by a pair of TUN devices (agent/lab/stage/tun_link.py).

with Cable(delay_s=0.02) as wire:
    with wire.left.entered(): client = socket.socket()
    with wire.right.entered(): server = socket.create_server((wire.RIGHT, 0))
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from agent.lab.stage.netns import Namespace
from agent.lab.stage.tun_link import Forwarder, Packet, Sent, tun


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


def counters(space: Namespace, prefix: str) -> dict[str, int]:
    """Counters of /proc/net/snmp and netstat whose name starts with ``prefix``, for example ``TcpRetransSegs``."""
    out = {}
    with space.entered():
        for name in ("snmp", "netstat"):
            with open(f"/proc/thread-self/net/{name}") as file:
                lines = [line.split() for line in file]
            for names, values in zip(lines[::2], lines[1::2], strict=True):
                kind = names[0].rstrip(":")
                out.update({kind + n: int(v) for n, v in zip(names[1:], values[1:], strict=True)})
    return {n: v for n, v in out.items() if n.startswith(prefix)}


class Cable:
    """The pair. delay_s: one way; drop: called for each packet, true drops it. ``dropped`` counts."""

    LEFT, RIGHT = "10.77.0.1", "10.77.0.2"
    LEFT6, RIGHT6 = "fd77::1", "fd77::2"
    #: An address of the wire's subnet without a host.
    NOBODY = "10.77.0.77"

    def __init__(self, delay_s: float = 0.0, drop: Callable[[Packet], bool] = lambda packet: False) -> None:
        self.delay_s, self.drop, self.dropped = delay_s, drop, 0
        self.left, self.right = Namespace(), Namespace()
        self._fds = (tun(self.left, self.LEFT, self.LEFT6), tun(self.right, self.RIGHT, self.RIGHT6))
        self._stop_r, self._stop_w = os.pipe()
        self._thread = threading.Thread(target=Forwarder(self._fds, self._treat).run, args=(self._stop_r,), daemon=True)
        self._thread.start()

    def _treat(self, packet: Packet) -> Sequence[Sent]:
        if self.drop(packet):
            self.dropped += 1
            return ()
        return ((self.delay_s, packet.data, packet.to_right),)

    def close(self) -> None:
        os.write(self._stop_w, b"x")
        self._thread.join()
        for fd in (*self._fds, self._stop_r, self._stop_w):
            os.close(fd)
        self.left.close()
        self.right.close()

    def __enter__(self) -> Cable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
