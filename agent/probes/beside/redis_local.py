"""Connections to a Redis over loopback, as the tcp family knows them: who asks, and whose server's end is read, so that
the client's need not be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import numpy as np

from agent.common.clocks import boot_ns
from agent.kernel import bpf
from agent.probes.beside.redis_flows import Ends

if TYPE_CHECKING:
    from agent.kernel.load import Loaded

#: Between two looks through all sockets for one that is not known; and for how many times as long as one takes. What
#: was seen is not trusted for longer than that: ports have others later.
_LOOK_NS, _REST, _TRUSTED_NS = 50_000_000, 20, 1_000_000_000
#: Between two looks for clients: at most, and soon after one connected over loopback. So many times as long as it took,
#: they are not looked for again.
_CLIENTS_NS, _SOON_NS, _CLIENTS_REST = 2_000_000_000, 300_000_000, 500
_V4, _V6 = b"\0" * 10 + b"\xff\xff\x7f", b"\0" * 15 + b"\1"


def over_loopback(address: bytes) -> bool:
    return address.startswith(_V4) or address == _V6


def _loopback(addresses: np.ndarray) -> np.ndarray:
    v4 = (addresses[:, : len(_V4)] == np.frombuffer(_V4, np.uint8)).all(axis=1)
    return np.asarray(v4 | (addresses == np.frombuffer(_V6, np.uint8)).all(axis=1))


def place(netns: np.ndarray, port: np.ndarray) -> np.ndarray:
    """A number for a port of a network namespace."""
    return np.asarray(netns.astype(np.int64) << 16 | port)


class Sockets:
    """The maps ``tcp_sockets`` and ``tcp_listeners``; nothing where the tcp family is not there."""

    def __init__(self, loaded: Loaded) -> None:
        tcp, dtype = loaded.families.get("tcp"), loaded.wire.dtype
        maps = tcp.maps if tcp is not None else {}
        self._sockets = (
            bpf.HashMap(maps["tcp_sockets"], np.dtype("<u8"), dtype("tcp_socket")) if "tcp_sockets" in maps else None
        )
        self._listeners = (
            bpf.HashMap(maps["tcp_listeners"], dtype("tcp_port"), dtype("proc")) if "tcp_listeners" in maps else None
        )
        self._asking: dict[tuple[int, int, int], np.void] = {}
        self._seen_ns = self._next_ns = 0

    def listening(self, pids: Collection[int]) -> set[int]:
        """Places at which these processes listen, and nobody else."""
        if self._listeners is None or not pids:
            return set()
        ports, procs = self._listeners.read()
        return set(place(ports["netns"], ports["port"])[np.isin(procs["pid"], list(pids))].tolist())

    def clients(self, ports: np.ndarray, served: Collection[int]) -> tuple[set[int], set[int]]:
        """Processes with a connection to one of these ports (a bit each), and those that have none but over loopback to
        a place that is served.
        """
        if self._sockets is None:
            return set(), set()
        wanted = np.unpackbits(ports.view(np.uint8), bitorder="little").astype(bool)
        values = self._sockets.read()[1]
        sock, pids = values["sock"], values["proc"]["pid"]
        asks = wanted[sock["dport"]] & (sock["role"] == 0) & (pids < 1 << 22)
        here = _loopback(sock["daddr"]) & np.isin(place(sock["netns"], sock["dport"]), list(served))
        others = set(pids[asks & ~here].tolist())
        return others, set(pids[asks].tolist()) - others

    def client_of(self, ends: Ends) -> np.void | None:
        """Who has the client's end of a connection over loopback."""
        if self._sockets is None or not over_loopback(ends.client):
            return None
        key, now_ns = (ends.netns, ends.client_port, ends.server_port), boot_ns()
        if (key not in self._asking or now_ns - self._seen_ns > _TRUSTED_NS) and now_ns >= self._next_ns:
            values = self._sockets.read()[1]
            values = values[
                (values["sock"]["role"] == 0) & (values["proc"]["pid"] < 1 << 22) & _loopback(values["sock"]["daddr"])
            ]
            sock = values["sock"]
            places = zip(sock["netns"].tolist(), sock["sport"].tolist(), sock["dport"].tolist(), strict=True)
            self._asking = dict(zip(places, values["proc"], strict=True))
            self._seen_ns, self._next_ns = now_ns, now_ns + max(_LOOK_NS, _REST * (boot_ns() - now_ns))
        return self._asking.get(key)


class Clients:
    """Who talks to a Redis port, and is not left to a server that is read itself and so tells of all of its clients
    over loopback. servers: pids of those that are.
    """

    def __init__(self, loaded: Loaded, servers: Callable[[], Collection[int]]) -> None:
        self._sockets, self._servers = Sockets(loaded), servers
        self.left: set[int] = set()
        self._served: set[int] = set()
        self.next_ns = self._soonest_ns = self._listened_ns = 0

    def look(self, ports: np.ndarray, now_ns: int) -> set[int]:
        """Those that need probes; ``left``: those that need none. ports: a bit each."""
        self._served = self._sockets.listening(self._servers())
        others, self.left = self._sockets.clients(ports, self._served)
        end_ns = boot_ns()
        self._soonest_ns = end_ns + _CLIENTS_REST * (end_ns - now_ns)
        self.next_ns = max(end_ns + _CLIENTS_NS, self._soonest_ns)
        return others

    def connecting(self, records: np.ndarray) -> set[int]:
        """Those of who connects just now that need probes. records: of ``struct redis_tls_user``."""
        local, places, now_ns = records["loopback"] != 0, place(records["netns"], records["port"]), boot_ns()
        if now_ns >= self._listened_ns and (local & ~np.isin(places, list(self._served))).any():
            self._served = self._sockets.listening(self._servers())
            self._listened_ns = now_ns + _LOOK_NS
            self.next_ns = max(self._soonest_ns, min(self.next_ns, now_ns + _SOON_NS))
        return set(records["proc"]["pid"][~(local & np.isin(places, list(self._served)))].tolist())

    def forget(self) -> None:
        """A server has gone: who its clients are is not known until the next look, which is soon."""
        self._served = set()
        self.next_ns = self._soonest_ns
