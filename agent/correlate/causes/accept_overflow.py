"""The listener itself, where nothing that held it up was seen."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from agent.correlate.catalogue import Cause
from agent.correlate.episode import Culprit, Episode, Verdict, item
from agent.correlate.local import in_netns, is_loopback
from agent.correlate.view import View, to_peer
from agent.correlate.waits import PEERS
from agent.correlate.words import peer, process, tell, value
from agent.tables import TABLES

_SYN = TABLES["tcp_retransmit"].code("kind", "syn")


def accepting(episode: Episode, _view: View) -> Iterator[Verdict]:
    lost = int(episode.facts.get("drops", 0))
    also = tell(", and {lost} did not fit", lost=value(lost, "connection")) if lost else ""
    words = tell(
        "{who} accepted connections more slowly than they came{also}", who=process(episode.comm, episode.pid), also=also
    )
    yield Verdict(
        CAUSE.name,
        0.5,
        episode.scope,
        words,
        (
            item(
                "socket_queue",
                "accept queue",
                episode.value,
                "connections",
                column="queue",
                limit=episode.facts.get("limit"),
                drops=lost,
                pid=episode.pid,
            ),
        ),
    )


def full(episode: Episode, view: View) -> Iterator[Verdict]:
    """Connects by no network whose first segment the server did not take: it drops those that its queue has no room for."""
    netns, raw = episode.key
    assert isinstance(netns, int)
    assert isinstance(raw, bytes)
    rows = in_netns(to_peer(view.during("tcp_retransmit", episode), raw), netns)
    again = int(np.maximum(rows["count"], 1)[rows["kind"] == _SYN].sum())
    server = view.server(raw, netns, episode)
    if server is None or not again or not (is_loopback(raw) or view.has_address(raw, netns, episode)):
        return
    words = tell("{who} did not take {n} at the first try", who=process(*server), n=value(again, "connect"))
    entry = item("tcp_retransmit", "SYNs sent again", again, "", column="count", peer=peer(raw))
    yield Verdict(CAUSE.name, 0.5, "", words, (entry,), "", Culprit(server[1], server[0], peer(raw)))


CAUSE = Cause(
    "accept_overflow",
    130,
    "a program accepts connections more slowly than they come, and nothing that held it up was seen",
    PEERS,
    "raise its backlog (and net.core.somaxconn), or let more threads accept",
    {"accept_overflow": accepting, "connect_latency": full},
    facts=("limit", "drops"),
)
