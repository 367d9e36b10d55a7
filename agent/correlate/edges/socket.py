"""An open request to a server of this host."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import EdgeKind
from agent.correlate.episode import NOT_ASKED, Episode, Waited
from agent.correlate.served import owing
from agent.correlate.view import View
from agent.correlate.waits import PEERS, SHARE, on_peers


def requested(episode: Episode, view: View) -> Iterator[Waited]:
    for wait in on_peers(episode, view):
        if wait.server and wait.own >= SHARE and not wait.slower and not wait.resolver:
            owes = owing(wait.raw, view.netns(episode, wait.raw), episode, view)
            serves = (owes[2], int.from_bytes(wait.raw[16:18], "little")) if owes else NOT_ASKED
            yield Waited(
                wait.server[1], wait.server[0], wait.own, wait.sure, serves, wait.where, longest_ns=wait.longest
            )


EDGE = EdgeKind("socket", PEERS, requested, (*EdgeKind.symptoms, "deadline_exceeded"))
