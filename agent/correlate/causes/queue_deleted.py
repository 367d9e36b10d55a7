"""A stream or consumer group was deleted while clients use it."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.consumption import polls_of
from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.view import View
from agent.correlate.words import render, text


def deleted(episode: Episode, view: View) -> Iterator[Verdict]:
    if episode.metric != "gone":
        return
    polls = polls_of(episode, view)
    polls = polls[polls["status"] == b"gone"]
    why = text(polls["reason"][-1]) if len(polls) else ""
    words = render("{what}", what=why.partition(";")[0] or "it was deleted")
    entry = item("queue_lag", "polls without it", len(polls), "", column="status", reason=why, keys=episode.keys)
    yield Verdict(CAUSE.name, 0.97, episode.scope, words, (entry,))


CAUSE = Cause(
    "queue_deleted",
    13,
    "a stream or a consumer group was deleted while clients use it",
    {"queue_lag": ("system", "cluster", "destination", "partition", "consumer_group", "status", "reason")},
    "see who deleted it (DEL, FLUSHALL, XGROUP DESTROY, an expiry, a server without persistence), and create it again",
    {"queue_lag": deleted},
)
