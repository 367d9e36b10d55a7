"""A peer did not answer, though the network was fine."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.answered import chain
from agent.correlate.catalogue import Cause
from agent.correlate.cpu_starvation import READS, cpu_share
from agent.correlate.episode import UNANSWERED, Episode, Verdict
from agent.correlate.local import is_unix
from agent.correlate.polled import POLLS, away, polled
from agent.correlate.view import View
from agent.correlate.waits import PEERS, SHARE, on_peers
from agent.correlate.words import Words, render, span, value


def in_decisions(episode: Episode, view: View) -> Iterator[Verdict]:
    if not on_peers(episode, view):
        yield Verdict(CAUSE.name, 0.0, "", "the process did not wait for a peer meanwhile")
    yield from silent(episode, view)


def silent(episode: Episode, view: View) -> Iterator[Verdict]:
    for wait in on_peers(episode, view):
        if episode.metric == UNANSWERED:
            yield Verdict(CAUSE.name, 0.0, wait.where, f"{wait.who} did not answer either, as in a long poll")
        elif wait.dark and not wait.slower:
            yield Verdict(CAUSE.name, 0.0, wait.where, f"connects to {wait.name} were not answered either")
        elif wait.own >= SHARE and not wait.slower and not wait.starving and not wait.resolver:
            certain = (
                (0.97 if wait.worst is not None else 0.75)
                * ((0.5 if wait.resent.syns > 0.9 * wait.again else 0.7) if wait.again else 1.0)
                * (0.8 if wait.resets or len(wait.failed) else 1.0)
            )
            words = render(
                "{who} did not answer for {longest}{meanwhile}",
                who=wait.who,
                longest=span(wait.longest),
                meanwhile="" if is_unix(wait.raw) else _meanwhile(wait.usual, wait.worst, wait.quickest),
            )
            entries = (wait.wait,) if is_unix(wait.raw) else (wait.wait, wait.rtt)
            score = certain * wait.own * wait.sure * (1 - cpu_share(episode, view))
            yield Verdict(CAUSE.name, score, wait.where, words, entries, "", wait.culprit)


def holding_back(episode: Episode, view: View) -> Iterator[Verdict]:
    poll = polled(episode, view)
    if poll.starving or poll.slower:
        return
    if poll.worst is None:
        yield Verdict(
            CAUSE.name,
            0.8,
            poll.scope,
            f"{poll.who} answered late (the network RTT to it is unknown)",
            (poll.seen,),
        )
    else:
        words = render("{who} answered late{meanwhile}", who=poll.who, meanwhile=_meanwhile(poll.usual, poll.worst))
        yield Verdict(CAUSE.name, 0.63 if poll.again else 0.9, poll.scope, words, (poll.seen, poll.rtt))


def in_vain(episode: Episode, view: View) -> Iterator[Verdict]:
    """A server answers with errors because it gives up waiting for another one."""
    yield from silent(episode, view)
    for end in chain(episode, view)[-1:]:
        if end.how == "given_up":
            words = render(
                "{who} did not answer {n} of {by}, which gave up", who=end.who, n=value(end.n, "request"), by=end.by
            )
        elif end.how == "waited":
            words = render("{who} kept {n} of {by} waiting", who=end.who, n=value(end.n, "call"), by=end.by)
        if end.how in ("given_up", "waited"):
            yield Verdict(CAUSE.name, 0.85, end.where, words, end.evidence(), "", end.culprit)


def behind(episode: Episode, view: View) -> Iterator[Verdict]:
    """A queue with a server that did not answer just before, or meanwhile."""
    outage = away(episode, view)
    if outage is not None and not outage.down:
        words = render("its server did not answer for {gone}", gone=span(outage.gone_ns))
        yield Verdict(CAUSE.name, 0.93, outage.scope, words, (outage.seen,), culprit=outage.culprit)


def _meanwhile(usual: float | None, worst: float | None, quickest: float | None = None) -> Words:
    """The end of a sentence: the network RTT, which is not to blame; us."""
    if quickest is not None:
        return render(" while a round trip to that address took {quickest}", quickest=span(quickest * 1e3))
    if worst is None:
        return " (network RTT unknown)"
    if usual is not None and worst > 2 * usual:
        return render(
            "; the network RTT rose from {usual} to {worst}, too little to explain it",
            usual=span(usual * 1e3),
            worst=span(worst * 1e3),
        )
    return render(" while the network RTT stayed at {worst}", worst=span(worst * 1e3))


CAUSE = Cause(
    "broker_slow",
    50,
    "a broker, or another server, did not answer for a while, although the network was fine",
    {**POLLS, **PEERS, **READS},
    "check its slow log (SLOWLOG GET in Redis), its disk and its CPU; tickscope query slow_syscall",
    {
        "decision_latency": in_decisions,
        "refusals": silent,
        "service_errors": in_vain,
        "service_latency": in_decisions,
        "broker_stall": holding_back,
        "queue_lag": behind,
        "deadline_exceeded": silent,
    },
    merge_group="broker",
)
