"""A peer refused connections, or was not there."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.polled import READS, polled
from agent.correlate.view import View
from agent.correlate.waits import PEERS, on_peers
from agent.correlate.words import plural


def unreachable(episode: Episode, view: View) -> Iterator[Verdict]:
    """As the poller saw it."""
    p = polled(episode, view)
    why = f" ({episode.words})" if episode.words else ""
    yield Verdict(CAUSE.name, 0.95, p.scope, f"{episode.subject} could not be reached{why}", (p.seen,))


def refused(episode: Episode, view: View) -> Iterator[Verdict]:
    for p in on_peers(episode, view):
        if len(p.failed):
            yield Verdict(CAUSE.name, 0.95 * p.sure, p.where, f"{p.who} refused or failed {plural(len(p.failed), 'connection')}",
                          (item("tcp_connect", "failed connects", len(p.failed), "", peer=p.name, errno=int(p.failed["errno"][0])), p.wait))


CAUSE = Cause(
    "broker_down", 20, "a broker, or another server, refused connections or was not there", {**READS, **PEERS},
    "see whether it runs, and why it ended: its log, and its unit's state", {"broker_down": unreachable, "decision_latency": refused, "refusals": refused},
    kin="broker")  # fmt: skip
