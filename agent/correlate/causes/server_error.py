"""A server fails requests and reports the error itself, or closes connections without an answer, and nothing else
explains it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from agent.correlate.answered import READS, FailedHop, chain
from agent.correlate.catalogue import Cause
from agent.correlate.connects import sent_here
from agent.correlate.episode import Culprit, Episode, Verdict, item
from agent.correlate.view import SERVERS, View, place
from agent.correlate.words import peer, process, render, value

_PASSED_ON, _EXPLICIT, _ALONE = (
    0.85,
    0.75,
    0.5,
)  # scores: another server's errors; a code with a reason; a bare status

_RESET, _MOST = 0.8, 0.5  # score; share of the resets that reached clients


def itself(episode: Episode, view: View) -> Iterator[Verdict]:
    hops = chain(episode, view)
    if hops and hops[-1].how == "closed":
        end = hops[-1]
        words = render(
            "{who} closed {n} of {by} without an answer", who=end.who, n=value(end.n, "connection"), by=end.by
        )
        yield Verdict(CAUSE.name, _PASSED_ON, end.where, words, end.evidence(), "closed", end.culprit, end.pids)
        return
    answers = [one for one in hops if one.how == "answered" and one.n]
    if not answers:
        return
    *hops_before, end = answers
    score = _PASSED_ON if hops_before else _ALONE if end.protocol == "http" or end.code == "ERR" else _EXPLICIT
    words = (
        render(
            "{who} answered with {error} to {n}{asked}",
            who=end.who,
            error=end.error_text,
            n=value(end.n, "request"),
            asked=end.requested_by,
        )
        if len(hops) > 1
        else render(
            "{who} reports the error itself ({error}){asked}{beside}",
            who=end.who,
            error=end.error_text,
            asked=end.requested_by,
            beside=_beside(end),
        )
    )
    yield Verdict(CAUSE.name, end.capped(score), end.where, words, end.evidence(), end.code, end.culprit, end.pids)


def _beside(end: FailedHop) -> str:
    """What is known of the servers that it calls itself."""
    if end.self_explanatory:
        return ""
    return (
        "; the servers that it calls fail no more than usual"
        if end.pids
        else "; the servers that it calls are not visible from here"
    )


def resets(episode: Episode, view: View) -> Iterator[Verdict]:
    """Connections to a server of this host, which reset them itself: it closed them with unread data."""
    netns, raw = cast("tuple[int, bytes]", episode.key)
    server, broken, name = view.server(raw, netns, episode), episode.facts.get("broken", 0.0), peer(raw)
    sent = sent_here(view.during("tcp_reset", episode), raw, netns)
    if server is None or sent < _MOST * broken or broken <= episode.facts.get("failed", 0.0):
        return
    words = render("{who} reset {n}", who=process(*server), n=value(min(sent, broken), "connection"))
    entry = item("tcp_reset", "connections reset", sent, "", keys={"sport": int.from_bytes(raw[16:], "little")})
    where, culprit = place(name, raw, netns), Culprit(server[1], server[0], name)
    yield Verdict(CAUSE.name, _RESET, where, words, (entry,), "closed", culprit, (server[1],))


CAUSE = Cause(
    "server_error",
    95,
    "a server fails requests and reports the error itself, or closes connections without an answer",
    {**SERVERS, **READS, "tcp_reset": ("netns", "saddr", "sport", "peer", "role", "direction")},
    "see its log; tickscope query service_answer --where \"code <> ''\"",
    {"service_errors": itself, "connect_failures": resets},
)
