"""Segments were lost on the way to a peer."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.view import View
from agent.correlate.waits import PEERS, SHARE, on_peers
from agent.correlate.words import plural


def lost(episode: Episode, view: View) -> Iterator[Verdict]:
    for p in on_peers(episode, view):
        if p.again and p.share >= SHARE:
            yield Verdict(CAUSE.name, 0.9 * p.share * p.sure, p.host, f"{plural(p.again, 'segment')} had to be sent again between it and {p.who}",
                          (item("tcp_retransmit", "segments sent again", p.again, "", column="count", peer=p.name), p.wait, p.rtt))
        elif not p.again:
            yield Verdict(CAUSE.name, 0.0, p.name, f"no segment to {p.name} was sent again",
                          (item("tcp_retransmit", "segments sent again", 0, "", column="count", peer=p.name),))


CAUSE = Cause(
    "network_loss", 30, "packets to or from a peer were lost, and had to be sent again", PEERS,
    "look for drops on the way: ip -s link, tc -s qdisc, the switch's counters; tickscope query tcp_retransmit --group-by peer",
    {"decision_latency": lost, "refusals": lost})
