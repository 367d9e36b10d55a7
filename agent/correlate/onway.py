"""What the network to a peer was like, as the causes of a peer's own symptoms go by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from agent.correlate.episode import Episode
from agent.correlate.local import in_netns
from agent.correlate.resent import had_already
from agent.correlate.view import View, to_peer
from agent.correlate.way import Way, crowded, way
from agent.correlate.words import peer


@dataclass(frozen=True)
class OnWay:
    """again: segments sent again; spurious: the peer had them already. crowded: this host's processors were so busy
    that all of it is slow.
    """

    name: str
    way: Way
    again: int
    spurious: bool
    crowded: bool

    @property
    def host(self) -> str:
        return self.name.rpartition(":")[0]


def on_way(episode: Episode, view: View) -> OnWay:
    return view.once(_on_way, episode)


def _on_way(episode: Episode, view: View) -> OnWay:
    netns, raw = cast("tuple[int, bytes]", episode.key)
    spans = np.array([episode.start_ns]), np.array([episode.end_ns])
    here = view.server(raw, netns, episode) is not None
    took = way(episode, view, raw, netns, episode.value, spans, here)
    rows = in_netns(to_peer(view.during("tcp_retransmit", episode), raw), netns)
    again = int(np.maximum(rows["count"], 1).sum())
    had = had_already(episode, view, raw, netns, again)
    return OnWay(peer(raw), took, again, had, crowded(view, episode))
