"""The network to a peer, for the causes of a peer's own symptoms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from agent.correlate.episode import Episode, Evidence
from agent.correlate.local import in_netns
from agent.correlate.path import Path, cpu_saturated, path
from agent.correlate.peers import RESENT_NS
from agent.correlate.resent import resent
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View, to_peer
from agent.correlate.words import peer
from agent.tables import TABLES

_CLIENT = TABLES["tcp_rtt"].code("role", "client")


@dataclass(frozen=True)
class PeerPath:
    """again: retransmitted segments, including the peer's own if it is on this host; spurious: the receiver had them
    already, and acknowledged them late; lost: otherwise, if it would report those that it had. cpu_saturated: this
    host's CPUs were so busy that everything on it was slow. entry: evidence of ``again``.
    """

    name: str
    path: Path
    again: int
    spurious: bool
    lost: bool
    cpu_saturated: bool
    entry: Evidence

    @property
    def host(self) -> str:
        return self.name.rpartition(":")[0]


def peer_path(episode: Episode, view: View) -> PeerPath:
    return view.once(_peer_path, episode)


def _peer_path(episode: Episode, view: View) -> PeerPath:
    netns, raw = cast("tuple[int, bytes]", episode.key)
    spans = np.array([episode.start_ns]), np.array([episode.end_ns])
    here = view.server(raw, netns, episode) is not None
    waited_ns = episode.value if episode.unit == "ns" else RESENT_NS
    took = path(episode, view, raw, netns, waited_ns, spans, here)
    rows = in_netns(to_peer(view.during("tcp_retransmit", episode), raw), netns)
    talks = view.rings["tcp_rtt"].between(episode.start_ns - 60 * SECOND, episode.end_ns + SECOND)
    talks = in_netns(to_peer(talks, raw), netns)
    back = resent(episode, view, raw, netns, rows, clients=talks["saddr"][talks["role"] == _CLIENT])
    had = back.again > 0 and back.spurious
    lost = back.again > 0 and back.sent is not None and not had
    return PeerPath(peer(raw), took, back.again, had, lost, cpu_saturated(view, episode), back.evidence(raw))
