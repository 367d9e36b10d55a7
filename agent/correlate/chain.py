"""Along a chain of calls, which process kept which waiting: from an abandoned request to the server at the end of the
chain, as far as it runs on this host. Pure.

A server passes the wait on if it gives up waiting for another one, or waits for it for most of that time. Then the next
server is examined.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.common.copies import pick
from agent.correlate.abandoned import READS as GIVEN
from agent.correlate.abandoned import given_up
from agent.correlate.episode import Culprit, Episode
from agent.correlate.local import in_netns
from agent.correlate.path import rtt_us
from agent.correlate.resent import resent
from agent.correlate.rows import groups
from agent.correlate.thresholds import SECOND
from agent.correlate.view import NO_PEER, View, place, to_peer
from agent.correlate.waits import CPUS, PEERS, SHARE, WAITING
from agent.correlate.words import peer, process
from agent.tables import TABLES

READS = {**PEERS, **CPUS, **GIVEN, "tcp_connect": tuple({*PEERS["tcp_connect"], *GIVEN["tcp_connect"]})}
_HOPS, _TALKED_NS = 5, 60 * SECOND
_SERVER = TABLES["tcp_rtt"].code("role", "server")
_END = np.dtype([("netns", np.int64), ("peer", "V18")])
_MOST = 0.5  # a server's own wait explains the wait for it from this share on


@dataclass(frozen=True)
class Hop:
    """A server that was called. raw: ip:port as in rows. given: abandoned requests to it; unanswered: those of them
    without an answer to the SYN; again: segments to it that were retransmitted meanwhile; lost: how much of the
    abandoned requests that explains, from 0 to 1. starved_ns: how long it waited for a CPU. usual, worst: RTT, us.
    """

    raw: bytes
    netns: int | None
    server: tuple[str, int] | None
    given: int
    unanswered: int
    again: int
    lost: float
    starved_ns: float
    usual: float | None
    worst: float | None

    def slower(self, gave_up_ns: float) -> bool:
        """Whether round trips to it rose to half of the time after which it was given up, or more."""
        usual, worst = self.usual, self.worst
        if usual is None or worst is None or worst <= 2 * usual:
            return False
        return (worst - usual) * 1e3 >= SHARE * gave_up_ns

    @property
    def dark(self) -> bool:
        """Whether not even its kernel answered."""
        return self.unanswered > 0.5 * self.given

    @property
    def name(self) -> str:
        return peer(self.raw)

    @property
    def where(self) -> str:
        return place(self.name, self.raw, self.netns)

    @property
    def host(self) -> str:
        return place(self.name.rpartition(":")[0], self.raw, self.netns)

    @property
    def who(self) -> str:
        return f"{process(*self.server)} at {self.name}" if self.server else self.name

    @property
    def culprit(self) -> Culprit:
        return Culprit(self.server[1], self.server[0], self.name) if self.server else Culprit(object=self.name)


def is_starved(waited_ns: float, episode: Episode) -> bool:
    """Whether a process with this total wait for a CPU waited for most of the episode."""
    return waited_ns > _MOST * max(episode.value, episode.end_ns - episode.start_ns)


def hops(episode: Episode, view: View) -> list[Hop]:
    """From the server that the episode's process called to the end of the chain. Its key: network namespace, peer."""
    return view.once(_hops, episode)


def _hops(episode: Episode, view: View) -> list[Hop]:
    netns, raw = episode.key[:2]
    assert isinstance(netns, int)
    assert isinstance(raw, bytes)
    found = [_hop(raw, netns, episode, view)]
    while len(found) < _HOPS and found[-1].server is not None:
        step = _next_hop(_serving(found[-1], episode, view), episode, view)
        if step is None or step[1] in {hop.raw for hop in found}:
            break
        found.append(_hop(step[1], step[0], episode, view))
    return found


def _hop(raw: bytes, netns: int | None, episode: Episode, view: View) -> Hop:
    server = view.server(raw, netns, episode)
    rows = in_netns(to_peer(view.during("tcp_retransmit", episode), raw), netns)
    closes, connects = (
        in_netns(to_peer(given_up(*part), raw), netns)
        for part in ((_rows(view, "tcp_close", episode), None), (None, _rows(view, "tcp_connect", episode)))
    )
    given = len(closes) + len(connects)
    talks = in_netns(to_peer(view.rings["tcp_rtt"].between(episode.start_ns - _TALKED_NS, episode.end_ns), raw), netns)
    back = resent(episode, view, raw, netns, rows, clients=talks["saddr"][talks["role"] != _SERVER])
    hit = len(groups([rows["saddr"], rows["sport"]])[0]) if len(rows) else 0  # connections, one per request
    starved = view.starved_ns(server[1], episode) if server else 0.0
    usual, _, worst = rtt_us(view, raw, netns, episode)
    return Hop(
        raw,
        netns,
        server,
        given,
        len(connects),
        back.again,
        min(1.0, hit / max(given, 1)) * back.explains(episode.value),
        starved,
        usual,
        worst,
    )


def _rows(view: View, table: str, episode: Episode) -> np.ndarray:
    return view.rings[table].between(episode.start_ns, episode.end_ns + 2 * SECOND)


def _serving(hop: Hop, episode: Episode, view: View) -> list[int]:
    """All processes that serve there: any of several workers may be the one that waited."""
    served = view.servers.of_late(hop.raw, hop.netns, view.has_address(hop.raw, hop.netns, episode))
    return [pid for _, pid in served] or [hop.server[1] if hop.server else -1]


def _next_hop(pids: list[int], episode: Episode, view: View) -> tuple[int | None, bytes] | None:
    """(network namespace, peer) for which a server's processes waited most of the time; None if they did not wait."""
    until_ns = episode.end_ns + 2 * SECOND
    given = given_up(_rows(view, "tcp_close", episode), _rows(view, "tcp_connect", episode))
    given = given[np.isin(given["pid"], pids) & (given["age_ns"] >= _MOST * episode.value)]
    if len(given):
        first, group = groups([given["netns"], given["peer"]])
        row = given[first[int(np.argmax(np.bincount(group)))]]
        return int(row["netns"]), row["peer"].tobytes()
    calls = view.rings["slow_syscall"].between(episode.start_ns, until_ns)
    calls = calls[np.isin(calls["pid"], pids) & (calls["kind"] == WAITING) & (calls["peer"] != NO_PEER)]
    calls = calls[calls["duration_ns"] >= _MOST * episode.value]
    connected = _connected(pids, episode, view)
    calls = calls[np.isin(_raw(calls), _raw(connected))]  # else it waits for its own clients
    if not len(calls):
        return None
    first, group = groups([calls["peer"]])
    raw = calls["peer"][first[int(np.argmax(np.bincount(group, calls["duration_ns"])))]].tobytes()
    return int(pick(connected, connected["peer"] == np.frombuffer(raw, "V18")[0])["netns"][-1]), raw


def _connected(pids: list[int], episode: Episode, view: View) -> np.ndarray:
    """(netns, peer) of servers that processes had connected to, in the last minute."""
    parts = []
    for table in ("tcp_rtt", "tcp_connect"):
        rows = view.rings[table].between(episode.start_ns - 60 * SECOND, episode.end_ns + 2 * SECOND)
        rows = rows[np.isin(rows["pid"], pids)]
        rows = rows[rows["role"] != _SERVER] if table == "tcp_rtt" else rows
        out = np.empty(len(rows), _END)
        out["netns"], out["peer"] = rows["netns"], rows["peer"]
        parts.append(out)
    return np.concatenate(parts)


def _raw(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows["peer"]).view("S18").reshape(len(rows))
