"""The process of this host that serves an address, as seen from a network namespace.

A server is (network namespace, address, port): two containers may both have 127.0.0.1:6379. Loopback is served within
its own namespace only. Any other address is served by the namespace that has it, unless two have it and the asker is in
neither.
"""

from __future__ import annotations

import ipaddress
from collections import deque
from functools import lru_cache

import numpy as np

from agent.columns import NULL_I64
from agent.common.address import UNIX
from agent.common.copies import pick
from agent.correlate.rows import columns_of, groups
from agent.correlate.thresholds import SECOND
from agent.correlate.words import text

_ANY = (bytes(16), bytes(10) + b"\xff\xff" + bytes(4))  # also stands for an unknown address
Server = tuple[str, int]
_FORMER = 4  # of an address: earlier, or additional, servers
# their terminations are not kept for longer, and the pid may belong to another process by then
_FORMER_NS = 180 * SECOND


@lru_cache(4096)
def is_loopback(raw: bytes) -> bool:
    """Whether no network is on the path of a stored address (16 bytes), as with a Unix socket."""
    if raw.startswith(UNIX):
        return True
    ip = ipaddress.IPv6Address(raw[:16])
    return (ip.ipv4_mapped or ip).is_loopback


def is_unix(raw: bytes) -> bool:
    """Whether it is a Unix socket, which has no round trips."""
    return raw.startswith(UNIX)


def in_netns(rows: np.ndarray, netns: int | None) -> np.ndarray:
    """The rows of that network namespace, or with an unknown one; all rows if ``netns`` is None."""
    if netns is None:
        return rows
    return np.asarray(rows[(rows["netns"] == netns) | (rows["netns"] == NULL_I64)])


class Servers:
    """Learns from rows of ``tcp_rtt`` (server side) and ``socket_queue``.

    Keeps at most ``limit`` servers, none that was not seen for ``age_ns``. The one not seen for longest is dropped
    first, and counted in ``dropped``.
    """

    def __init__(self, limit: int, age_ns: int) -> None:
        self._limit, self._age_ns = limit, age_ns
        self._known: dict[tuple[bytes, int, int], tuple[int, Server]] = {}  # the one not seen for longest is first
        self._former: dict[tuple[bytes, int, int], deque[tuple[int, Server]]] = {}  # each with when it was last seen
        self._served: dict[tuple[bytes, int, int], int] = {}  # when it was last seen to serve
        self._netns: dict[tuple[bytes, int], set[int]] = {}
        self._newest_ns = NULL_I64
        self.dropped = 0
        self.version = 0  # changes whenever ``find`` may return another result

    def __len__(self) -> int:
        return len(self._known)

    def learn(self, rows: np.ndarray, unused_ns: int = 0) -> None:
        """Takes rows in time order. unused_ns: of listeners, which replace only processes that have not served for
        so long.
        """
        rows = pick(rows, (rows["pid"] > 0) & (rows["sport"] > 0))[::-1]  # the last one of each comes first
        if not len(rows):
            return
        first = groups([rows["netns"], rows["saddr"], rows["sport"]])[0]
        for t_ns, netns, address, port, comm, pid in columns_of(
            rows, first, "t_ns", "netns", "saddr", "sport", "comm", "pid"
        ):
            server = text(comm), pid
            key, before = (address, port, netns), self._known.get((address, port, netns))
            if before is not None and before[1] != server and t_ns - self._served.get(key, NULL_I64) < unused_ns:
                continue
            if not unused_ns:
                self._served[key] = t_ns
            self._known.pop((address, port, netns), None)
            if before is None or before[1] != server:
                self.version += 1
                self._displace((address, port, netns), before, server)
            self._known[address, port, netns] = t_ns, server
            self._netns.setdefault((address, port), set()).add(netns)
            self._newest_ns = max(self._newest_ns, t_ns)
        self._forget()

    def _displace(self, key: tuple[bytes, int, int], before: tuple[int, Server] | None, server: Server) -> None:
        others = [other for other in self._former.get(key, ()) if other[1] not in (server, before and before[1])]
        self._former[key] = deque([*others, before] if before else others, _FORMER)

    def _forget(self) -> None:
        while self._known:
            address, port, netns = key = next(iter(self._known))
            old = self._newest_ns - self._known[key][0] > self._age_ns
            if not old and len(self._known) <= self._limit:
                return
            self.dropped += not old
            self.version += 1
            del self._known[key]
            self._former.pop(key, None)
            self._served.pop(key, None)
            there = self._netns[address, port]
            there.discard(netns)
            if not there:
                del self._netns[address, port]

    def find(self, peer: bytes, netns: int | None, own_address: bool = False) -> Server | None:
        """(comm, pid) of the server of a peer (18 bytes), as seen from that namespace; None if unknown or ambiguous.

        own_address: the peer's address is the asker's own, so that a listener on all addresses there serves it, too.
        """
        address, port = peer[:16], int.from_bytes(peer[16:18], "little")
        found = self._places(address, port, netns, own_address)
        same = {self._known[key][1] for key in found}
        return same.pop() if len(same) == 1 else None

    def netns_of(self, peer: bytes, netns: int | None) -> list[int]:
        """The network namespaces in which a peer is served, as seen from that one."""
        return [key[2] for key in self._places(peer[:16], int.from_bytes(peer[16:18], "little"), netns, False)]

    def of_late(self, peer: bytes, netns: int | None, own_address: bool = False) -> list[Server]:
        """All current and earlier servers of a peer, the latest first; empty if it is ambiguous."""
        found = self._places(peer[:16], int.from_bytes(peer[16:18], "little"), netns, own_address)
        if len({self._known[key][1] for key in found}) != 1:
            return []
        return [server for key in found for server in (self._known[key][1], *self._before(key))]

    def _before(self, key: tuple[bytes, int, int]) -> list[Server]:
        since_ns = self._newest_ns - _FORMER_NS
        return [server for at_ns, server in reversed(self._former.get(key, ())) if at_ns >= since_ns]

    def _places(self, address: bytes, port: int, netns: int | None, own_address: bool) -> list[tuple[bytes, int, int]]:
        near = is_loopback(address) or own_address
        for where in (address, *_ANY) if near else (address,):
            found = [(where, port, n) for n in sorted(self._netns.get((where, port), ()))]
            same = [key for key in found if netns is None or key[2] in (netns, NULL_I64)]
            if same:
                return same
            if found and not near:
                return found
        return []
