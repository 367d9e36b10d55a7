"""The network to a peer was slow."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.episode import Culprit, Episode, Verdict
from agent.correlate.local import is_unix
from agent.correlate.pairs import pair
from agent.correlate.path import Path, cpu_saturated
from agent.correlate.peer_path import peer_path
from agent.correlate.polled import polled
from agent.correlate.view import View
from agent.correlate.waits import PEERS, SHARE, PeerWait, on_peers
from agent.correlate.words import Words, render, span, value


def slower(episode: Episode, view: View) -> Iterator[Verdict]:
    for p in on_peers(episode, view):
        if p.slower and p.share >= SHARE:
            unless = ", unless it acknowledged only with its answers" if p.path.held else ""
            words = render("the network RTT to {who} {rose}{unless}", who=p.who, rose=_rose(p.path), unless=unless)
            score = (0.65 if p.path.held else 0.6 if cpu_saturated(view, episode) else 0.92) * p.share * p.sure
            yield Verdict(CAUSE.name, score, p.host, words, (*p.path.entries, p.wait))
        elif p.worst is not None and not is_unix(p.raw):
            yield Verdict(
                CAUSE.name,
                0.0,
                p.name,
                render("the network RTT to {peer} {did}", peer=p.name, did=_no_reason(p)),
                p.path.entries,
            )


def between(episode: Episode, view: View) -> Iterator[Verdict]:
    """Both ends of a connection: what was written was on its way."""
    p = pair(episode, view)
    if p.path.slower:
        words = render("the network RTT to {name} {rose}", name=p.name, rose=_rose(p.path))
        yield Verdict(CAUSE.name, 0.85, p.name.rpartition(":")[0], words, p.path.entries)


def of_peer(episode: Episode, view: View) -> Iterator[Verdict]:
    p = peer_path(episode, view)
    if p.cpu_saturated:
        yield Verdict(CAUSE.name, 0.0, "", "the CPUs of this host were busy, so that all of it is slow")
    elif p.path.slower:
        words = render("the network RTT to {name} {rose}", name=p.name, rose=_rose(p.path))
        yield Verdict(CAUSE.name, 0.85, p.host, words, p.path.entries, "", Culprit(object=p.name))


def to_broker(episode: Episode, view: View) -> Iterator[Verdict]:
    p = polled(episode, view)
    if p.slower and not p.starving:
        yield Verdict(
            CAUSE.name,
            0.85,
            p.scope,
            render("the network RTT to it {rose}", rose=_from_to(p.usual, p.worst)),
            (p.rtt, p.seen),
        )


def _no_reason(p: PeerWait) -> Words:
    """What it did, and why that explains nothing."""
    worst, rose = p.worst or 0, _from_to(p.usual, p.worst)
    if p.usual is None:
        return render("was {worst}, and what it was before is not known", worst=span(worst * 1e3))
    if worst <= 2 * p.usual:
        return render(
            "{did} {worst} (usually {usual})",
            did="fell to" if 2 * worst < p.usual else "stayed at",
            worst=span(worst * 1e3),
            usual=span(p.usual * 1e3),
        )
    if p.quickest is not None:
        return render(
            "{rose}, but a round trip to that address took {quickest}",
            rose=rose,
            quickest=span(p.quickest * 1e3),
        )
    if p.slower:
        return render(
            "{rose}, but waits on it were only {share} of the time lost", rose=rose, share=value(p.share, "ratio")
        )
    return render("{rose}, too little to explain waits of {longest}", rose=rose, longest=span(p.longest))


def _rose(its: Path) -> Words:
    """Jitter is told as such."""
    if its.low is None or its.high is None:
        return _from_to(its.usual, its.now)
    return render(
        "rose from {usual} to between {low} and {high}, another time for each packet",
        usual=span((its.usual or 0) * 1e3),
        low=span(its.low * 1e3),
        high=span(its.high * 1e3),
    )


def _from_to(usual: float | None, now: float | None) -> Words:
    return render("rose from {usual} to {now}", usual=span((usual or 0) * 1e3), now=span((now or 0) * 1e3))


CAUSE = Cause(
    "network_rtt",
    40,
    "round trips to a peer took far longer than usual",
    PEERS,
    "see whether a link is full or a path has changed: tickscope query tcp_rtt --group-by peer; tc -s qdisc",
    {
        "decision_latency": slower,
        "refusals": slower,
        "service_errors": slower,
        "service_latency": slower,
        "broker_stall": to_broker,
        "sender_stalled": between,
        "network_rtt": of_peer,
        "network_loss": of_peer,
        "connect_latency": of_peer,
    },
)
