"""The network to a peer was slow."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.episode import Episode, Verdict
from agent.correlate.polled import polled
from agent.correlate.view import View
from agent.correlate.waits import PEERS, SHARE, PeerWait, on_peers
from agent.correlate.words import percent, span


def slower(episode: Episode, view: View) -> Iterator[Verdict]:
    for p in on_peers(episode, view):
        if p.slower and p.share >= SHARE:
            yield Verdict(CAUSE.name, (0.65 if p.held else 0.88) * p.share * p.sure, p.host, f"the network RTT to {p.who} {_rose(p.usual, p.worst)}"
                          + (", unless it acknowledged only with its answers" if p.held else ""), (p.rtt, p.wait))
        elif p.worst is not None:
            yield Verdict(CAUSE.name, 0.0, p.name, f"the network RTT to {p.name} {_no_reason(p)}", (p.rtt,))


def to_broker(episode: Episode, view: View) -> Iterator[Verdict]:
    p = polled(episode, view)
    if p.slower and not p.starving:
        yield Verdict(CAUSE.name, 0.85, p.scope, f"the network RTT to it {_rose(p.usual, p.worst)}", (p.rtt, p.seen))


def _no_reason(p: PeerWait) -> str:
    """What it did, and why that explains nothing."""
    worst = p.worst or 0
    if p.usual is None:
        return f"was {span(worst * 1e3)}, and what it was before is not known"
    if worst <= 2 * p.usual:
        return f"{'fell to' if 2 * worst < p.usual else 'stayed at'} {span(worst * 1e3)}, usually {span(p.usual * 1e3)}"
    if p.quickest is not None:
        return f"{_rose(p.usual, worst)}, but {span(p.quickest * 1e3)} were enough for a round trip to that address"
    if p.slower:
        return f"{_rose(p.usual, worst)}, but waits on it were only {percent(p.share)} of the time lost"
    return f"{_rose(p.usual, worst)}, too little to explain waits of {span(p.longest)}"


def _rose(usual: float | None, worst: float | None) -> str:
    return f"rose from {span((usual or 0) * 1e3)} to {span((worst or 0) * 1e3)}"


CAUSE = Cause(
    "network_rtt", 40, "round trips to a peer took far longer than usual", PEERS,
    "see whether a link is full or a path has changed: tickscope query tcp_rtt --group-by peer; tc -s qdisc",
    {"decision_latency": slower, "refusals": slower, "broker_stall": to_broker})
