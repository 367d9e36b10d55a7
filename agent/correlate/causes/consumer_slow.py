"""A group's consumers take less than what comes."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.consumption import FACTS, consumption
from agent.correlate.episode import Episode, Verdict
from agent.correlate.view import View
from agent.correlate.words import number


def slow(episode: Episode, _view: View) -> Iterator[Verdict]:
    c = consumption(episode)
    if c.gone:
        return
    if c.out is None:
        yield Verdict(CAUSE.name, 0.0, "", "the rate of acknowledgements is not known")
    elif c.held or c.idle:
        return
    elif c.out_was is not None and c.out < 0.7 * c.out_was:
        yield Verdict(CAUSE.name, 0.85, episode.scope, f"its consumers acknowledged only {number(c.out)} messages per second{c.usual}", c.rates)
    elif c.arriving is not None and c.out < 0.95 * c.arriving and not c.arriving >= 1.5 * (c.arriving if c.arriving_was is None else c.arriving_was):
        words = f"its consumers acknowledged {number(c.out)} messages per second while {number(c.arriving)} arrived"
        yield Verdict(CAUSE.name, 0.7, episode.scope, words, c.rates)
    else:
        yield Verdict(CAUSE.name, 0.0, "", f"its consumers acknowledged {number(c.out)} messages per second{c.usual}", c.rates)


CAUSE = Cause("consumer_slow", 120, "a group's consumers acknowledge less than what arrives, or than they usually do", {},
              "see what each message costs them, or add consumers: tickscope queues", {"queue_lag": slow}, facts=FACTS)
