"""A message that no consumer can handle: it is rejected and redelivered repeatedly."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.consumption import polls_of
from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.redeliveries import COLUMNS, Redeliveries
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View
from agent.correlate.words import render, value

_BEFORE_NS = 10 * SECOND


def given_back(episode: Episode, view: View) -> Iterator[Verdict]:
    seen = Redeliveries()
    polls = polls_of(episode, view, _BEFORE_NS)
    for row in polls:
        seen.add(row)
    if not len(polls) or not seen.repeated:
        yield Verdict(CAUSE.name, 0.0, "", "no message was redelivered repeatedly")
        return
    words = render(
        "a consumer rejects a message repeatedly, or ends while it handles it ({n} found redelivered messages)",
        n=value(seen.times, "poll"),
    )
    entry = item(
        "queue_lag", "polls with redelivered messages", seen.times, "", column="redelivered", keys=episode.keys
    )
    yield Verdict(CAUSE.name, 0.93, episode.scope, words, (entry,))


CAUSE = Cause(
    "poison_message",
    105,
    "a message that consumers cannot handle is rejected and redelivered repeatedly",
    {"queue_lag": ("cluster", "destination", "consumer_group", "partition", *COLUMNS)},
    "find it in the consumers' logs; limit its deliveries (x-delivery-limit, max_retries), and use a dead-letter queue",
    {"queue_lag": given_back, "redelivery": given_back},
)
