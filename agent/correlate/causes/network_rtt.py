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
    for wait in on_peers(episode, view):
        if wait.slower and wait.share >= SHARE:
            unless = ", unless it acknowledged only with its answers" if wait.path.held else ""
            words = render(
                "the network RTT to {who} {rose}{unless}", who=wait.who, rose=_rose(wait.path), unless=unless
            )
            score = (0.65 if wait.path.held else 0.6 if cpu_saturated(view, episode) else 0.92) * wait.share * wait.sure
            yield Verdict(
                CAUSE.name, score, wait.host, words, (*wait.path.entries, wait.wait), "", Culprit(object=wait.name)
            )
        elif wait.worst is not None and not is_unix(wait.raw):
            yield Verdict(
                CAUSE.name,
                0.0,
                wait.name,
                render("the network RTT to {peer} {did}", peer=wait.name, did=_no_reason(wait)),
                wait.path.entries,
            )


def between(episode: Episode, view: View) -> Iterator[Verdict]:
    """Both ends of a connection: written data was on the way."""
    p = pair(episode, view)
    if p.path.slower:
        words = render("the network RTT to {name} {rose}", name=p.name, rose=_rose(p.path))
        yield Verdict(CAUSE.name, 0.85, p.name.rpartition(":")[0], words, p.path.entries)


def of_peer(episode: Episode, view: View) -> Iterator[Verdict]:
    link = peer_path(episode, view)
    if link.cpu_saturated:
        yield Verdict(CAUSE.name, 0.0, "", "the CPUs of this host were busy, which slows all of its programs")
    elif link.path.slower:
        words = render("the network RTT to {name} {rose}", name=link.name, rose=_rose(link.path))
        yield Verdict(CAUSE.name, 0.85, link.host, words, link.path.entries, "", Culprit(object=link.name))


def to_broker(episode: Episode, view: View) -> Iterator[Verdict]:
    poll = polled(episode, view)
    if poll.slower and not poll.starving:
        yield Verdict(
            CAUSE.name,
            poll.slow_trips,
            poll.scope,
            render("the network RTT to it {rose}", rose=_from_to(poll.usual, poll.worst)),
            (poll.rtt, poll.seen),
        )


def _no_reason(wait: PeerWait) -> Words:
    """The network RTT, and why it explains nothing."""
    worst, rose = wait.worst or 0, _from_to(wait.usual, wait.worst)
    if wait.usual is None:
        return render("was {worst}, and what it was before is not known", worst=span(worst * 1e3))
    if worst <= 2 * wait.usual:
        return render(
            "{did} {worst} (usually {usual})",
            did="fell to" if 2 * worst < wait.usual else "stayed at",
            worst=span(worst * 1e3),
            usual=span(wait.usual * 1e3),
        )
    if wait.quickest is not None:
        return render(
            "{rose}, but a round trip to that address took {quickest}",
            rose=rose,
            quickest=span(wait.quickest * 1e3),
        )
    if wait.slower:
        return render(
            "{rose}, but waits on it were only {share} of the time lost", rose=rose, share=value(wait.share, "ratio")
        )
    return render("{rose}, too little to explain waits of {longest}", rose=rose, longest=span(wait.longest))


def _rose(path: Path) -> Words:
    """Jitter is described as a range."""
    if path.low is None or path.high is None:
        return _from_to(path.usual, path.now or path.worst)
    return render(
        "rose from {usual} to between {low} and {high}, varying from packet to packet",
        usual=span((path.usual or 0) * 1e3),
        low=span(path.low * 1e3),
        high=span(path.high * 1e3),
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
        "deadline_exceeded": slower,
    },
)
