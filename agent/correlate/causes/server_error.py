"""A server fails requests and reports the error itself, or closes connections without an answer, and nothing else
explains it.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.answered import READS, FailedHop, chain
from agent.correlate.catalogue import Cause
from agent.correlate.episode import Episode, Verdict
from agent.correlate.view import View
from agent.correlate.words import render, value

_PASSED_ON, _EXPLICIT, _ALONE = (
    0.85,
    0.75,
    0.5,
)  # scores: another server's errors; a code with a reason; a bare status


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


CAUSE = Cause(
    "server_error",
    95,
    "a server fails requests and reports the error itself, or closes connections without an answer",
    READS,
    "see its log; tickscope query service_answer --where \"code <> ''\"",
    {"service_errors": itself},
)
