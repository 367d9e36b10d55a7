"""The members of a consumer group changed."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.consumption import FACTS, READS, consumption
from agent.correlate.episode import Episode, Verdict
from agent.correlate.view import View
from agent.correlate.words import render, value


def changed(episode: Episode, view: View) -> Iterator[Verdict]:
    c = consumption(episode, view)
    if c.gone or c.count is None:
        return
    if c.before is not None and c.count != c.before:
        words = render("its consumers changed from {before} to {now}", before=value(c.before), now=value(c.count))
        yield Verdict(CAUSE.name, 0.65, episode.scope, words, (c.members, *c.rates))
    else:
        yield Verdict(CAUSE.name, 0.0, "", render("it kept its {now}", now=value(c.count, "consumer")), (c.members,))


CAUSE = Cause(
    "rebalance",
    110,
    "the members of a consumer group changed",
    READS,
    "see which consumer came or went, and why: its log",
    {"queue_lag": changed},
    facts=FACTS,
)
