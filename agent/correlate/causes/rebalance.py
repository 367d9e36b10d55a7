"""The members of a consumer group changed."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.consumption import FACTS, READS, consumption
from agent.correlate.episode import Episode, Verdict
from agent.correlate.view import View
from agent.correlate.words import render, value


def changed(episode: Episode, view: View) -> Iterator[Verdict]:
    group = consumption(episode, view)
    if group.gone or group.count is None:
        return
    if group.before is not None and group.count != group.before:
        words = render(
            "its consumers changed from {before} to {now}", before=value(group.before), now=value(group.count)
        )
        yield Verdict(CAUSE.name, 0.65, episode.scope, words, (group.members, *group.rates))
    else:
        yield Verdict(
            CAUSE.name, 0.0, "", render("it kept its {now}", now=value(group.count, "consumer")), (group.members,)
        )


CAUSE = Cause(
    "rebalance",
    110,
    "the members of a consumer group changed",
    READS,
    "see which consumer came or went, and why: its log",
    {"queue_lag": changed},
    facts=FACTS,
)
