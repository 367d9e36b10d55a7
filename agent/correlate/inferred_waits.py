"""The peer that a process waited for, if no wait of its own was seen: a process that waits for all its connections at
once (epoll) names none of them.

The peer's server reports how long its clients waited, and the network data shows lost segments.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.common.address import UNIX
from agent.common.fairness import UpperBound
from agent.correlate.episode import Episode
from agent.correlate.local import in_netns, is_loopback
from agent.correlate.path import Spans, covered, path
from agent.correlate.rows import groups, known
from agent.correlate.thresholds import SECOND
from agent.correlate.view import NO_PEER, View, own_ends, to_peer
from agent.correlate.words import text
from agent.tables import TABLES

SURE = 0.8  # score of such a wait
_SERVER = TABLES["tcp_rtt"].code("role", "server")
_NAMES = (b"\x35\0", b"\x55\3")  # name servers have a cause of their own
_PEERS = 32  # of a process
_COVERS = 0.7  # of a wait, from which another wait explains it
_ALL_ALONG = 0.6  # ... of late answers, of which only the slowest of each second is known
_UNACCEPTED = 0.4  # of that, the part that a request may wait, unseen, in the backlog of a Unix socket
_RATIO, _SUM_RATIO = 2.0, 3.0  # slower than usual; the sum of all its answers
_USUALLY = 0.8  # of the seconds before: a stall among them is not usual
_STEADY = 5  # requests a second from which none at all is a stall
_AGAIN = 3
_BEFORE_NS, _NOTED_NS = 60 * SECOND, 30 * SECOND
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "findings",
        "peers of a late process of which no wait was seen",
        _PEERS,
        "only those that it used last are considered as the cause",
        "`status`, `probe_status` row `correlator`, a note of `findings`",
    ),
)
Connections = list[tuple[bytes, int | None]]  #: (peer, network namespace)


@dataclass(frozen=True)
class InferredWait:
    """A peer that kept a process waiting. pid, comm: of its server, the late one of several; 0 and empty if unknown.
    waited_ns: for one answer; all_along: late answers followed each other for most of the time, as where requests queue
    within the process for its only connection.
    """

    raw: bytes
    pid: int
    comm: str
    waited_ns: float
    all_along: bool = False

    @property
    def server(self) -> tuple[str, int] | None:
        return (self.comm, self.pid) if self.pid else None


def inferred_waits(episode: Episode, view: View, spans: Spans) -> list[InferredWait]:
    """Peers that were waited for, each with the longest wait."""
    assert episode.pid is not None
    took = spans[1] - spans[0]
    need = float(took.max(initial=0)) * _COVERS
    connections = _connections(episode, view, episode.pid)
    slow = _badly_reached(episode, view, connections, float(took.min(initial=took.max(initial=0))), spans)
    late = _latest(episode, view, connections, spans)
    unobserved_ns = _UNACCEPTED * need if late is not None and late.raw.startswith(UNIX) else 0.0
    if late is None or late.pid == episode.pid or not (late.all_along or late.waited_ns >= need - unobserved_ns):
        return slow
    return slow or [late]


def _connections(episode: Episode, view: View, pid: int) -> Connections:
    """Of a process's own, the most recently used first."""
    rows = view.rings["tcp_rtt"].between(episode.start_ns - _BEFORE_NS, episode.end_ns + SECOND)
    rows = rows[(rows["pid"] == pid) & (rows["role"] != _SERVER) & (rows["peer"] != NO_PEER)][::-1]
    last = sorted(groups([rows["peer"], rows["netns"]])[0]) if len(rows) else []
    view.with_more_peers.update(rows["pid"][last[_PEERS:]].tolist())
    found = [rows[i] for i in last[:_PEERS]]
    return [
        (row["peer"].tobytes(), int(row["netns"]) if known(row["netns"]) else None)
        for row in found
        if row["peer"].tobytes()[16:] not in _NAMES
    ]


def _latest(episode: Episode, view: View, connections: Connections, spans: Spans) -> InferredWait | None:
    """The peer of a process with the latest answer, among those that never take so long."""
    late = [one for raw, netns in connections if (one := _late(episode, view, raw, netns, spans))]
    return max(late, key=lambda one: (one.all_along, one.waited_ns), default=None)


def _late(episode: Episode, view: View, raw: bytes, netns: int | None, spans: Spans) -> InferredWait | None:
    port, at = int.from_bytes(raw[16:18], "little"), view.servers.netns_of(raw, netns)
    rows = view.rings["service_latency"].between(episode.start_ns - _BEFORE_NS, episode.end_ns + _NOTED_NS)
    rows = rows[(rows["sport"] == port) & np.isin(rows["netns"], at)]
    begun, over = rows["max_from_ns"], rows["max_from_ns"] + rows["max_ns"]
    waited = np.minimum(over, episode.end_ns) - np.maximum(begun, episode.start_ns)
    before, now = rows[rows["t_ns"] < episode.start_ns], waited > 0
    if not now.any() or not len(before):
        return None
    usual, in_all = (np.quantile(before[name], _USUALLY, method="lower") for name in ("max_ns", "sum_ns"))
    rate = np.median(before["requests"])
    longer = rows["max_ns"] > _RATIO * usual
    together = rows["sum_ns"] > _SUM_RATIO * max(in_all, usual)
    still = (rows["requests"] == 0) & (rows["waiting"] > 0) & (rate >= _STEADY)
    chosen = np.flatnonzero(now & (longer | together | still))
    if not len(chosen):
        return None
    i = chosen[np.argmax(waited[chosen])]
    all_along = covered((begun[chosen], over[chosen]), spans) >= _ALL_ALONG
    return InferredWait(raw, int(rows["pid"][i]), text(rows["comm"][i]), float(waited[i]), all_along)


def _badly_reached(
    episode: Episode, view: View, connections: Connections, shortest_ns: float, spans: Spans
) -> list[InferredWait]:
    """Peers of a process with a lossy or slow network. Loopback is left out: it only seems slow, if CPUs are busy."""
    found = []
    for raw, netns in connections:
        if is_loopback(raw):
            continue
        here = view.servers.find(raw, netns) is not None
        if _sent_again(episode, view, raw, netns) or path(episode, view, raw, netns, shortest_ns, spans, here).slower:
            found.append(InferredWait(raw, 0, "", shortest_ns))
    return found


def _sent_again(episode: Episode, view: View, raw: bytes, netns: int | None) -> bool:
    """Whether far more segments than before were retransmitted, to a peer or by it."""
    rows = view.rings["tcp_retransmit"].between(episode.start_ns - _BEFORE_NS, episode.end_ns)
    back = rows[own_ends(rows) == np.frombuffer(raw, "V18")[0]]
    rows = np.concatenate([in_netns(to_peer(rows, raw), netns), back])
    during = rows["t_ns"] >= episode.start_ns
    now, before = (int(np.maximum(rows["count"], 1)[which].sum()) for which in (during, ~during))
    lasted = max(1.0, (episode.end_ns - episode.start_ns) / SECOND)
    return now >= max(_AGAIN, 3 * lasted * before / (_BEFORE_NS / SECOND))
