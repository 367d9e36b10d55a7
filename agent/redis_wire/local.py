"""The client processes of loopback connections to a Redis, from the tcp family."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agent.common.clocks import boot_ns
from agent.kernel import bpf
from agent.redis_wire.flows import Ends

if TYPE_CHECKING:
    from agent.kernel.loaded_families import Loaded

#: Interval of searches through all sockets for an unknown one, and its minimum as a multiple of a search's duration.
#: Results are not used for longer than that, since ports are reused.
_CHECK_NS, _REST, _TRUSTED_NS = 50_000_000, 20, 1_000_000_000
_V4, _V6 = b"\0" * 10 + b"\xff\xff\x7f", b"\0" * 15 + b"\1"


def over_loopback(address: bytes) -> bool:
    return address.startswith(_V4) or address == _V6


def _loopback(addresses: np.ndarray) -> np.ndarray:
    v4 = (addresses[:, : len(_V4)] == np.frombuffer(_V4, np.uint8)).all(axis=1)
    return np.asarray(v4 | (addresses == np.frombuffer(_V6, np.uint8)).all(axis=1))


class Sockets:
    """The map ``tcp_sockets``; empty without the tcp family."""

    def __init__(self, loaded: Loaded) -> None:
        tcp, dtype = loaded.families.get("tcp"), loaded.wire.dtype
        maps = tcp.maps if tcp is not None else {}
        self._sockets = (
            bpf.HashMap(maps["tcp_sockets"], np.dtype("<u8"), dtype("tcp_socket")) if "tcp_sockets" in maps else None
        )
        self._requesting: dict[tuple[int, int, int], np.void] = {}
        self._seen_ns = self._next_ns = 0

    def client_of(self, ends: Ends) -> np.void | None:
        """The process at the client's end of a loopback connection."""
        if self._sockets is None or not over_loopback(ends.client):
            return None
        key, now_ns = (ends.netns, ends.client_port, ends.server_port), boot_ns()
        if (key not in self._requesting or now_ns - self._seen_ns > _TRUSTED_NS) and now_ns >= self._next_ns:
            values = self._sockets.read()[1]
            values = values[
                (values["sock"]["role"] == 0) & (values["proc"]["pid"] < 1 << 22) & _loopback(values["sock"]["daddr"])
            ]
            sock = values["sock"]
            places = zip(sock["netns"].tolist(), sock["sport"].tolist(), sock["dport"].tolist(), strict=True)
            self._requesting = dict(zip(places, values["proc"], strict=True))
            self._seen_ns, self._next_ns = now_ns, now_ns + max(_CHECK_NS, _REST * (boot_ns() - now_ns))
        return self._requesting.get(key)
