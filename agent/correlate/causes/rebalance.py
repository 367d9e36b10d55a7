"""The members of a consumer group changed."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.consumption import FACTS, consumption
from agent.correlate.episode import Episode, Verdict
from agent.correlate.view import View
from agent.correlate.words import number


def changed(episode: Episode, _view: View) -> Iterator[Verdict]:
    c = consumption(episode)
    if c.gone or c.count is None:
        return
    if c.before is not None and c.count != c.before:
        words = f"its consumers changed from {number(c.before)} to {number(c.count)}"
        yield Verdict(CAUSE.name, 0.65, episode.scope, words, (c.members, *c.rates))
    else:
        yield Verdict(CAUSE.name, 0.0, "", f"its consumers stayed {number(c.count)}", (c.members,))


CAUSE = Cause("rebalance", 110, "the members of a consumer group changed", {}, "see which consumer came or went, and why: its log", {"queue_lag": changed}, facts=FACTS)
