"""A group's consumers are gone, or acknowledge nothing."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.consumption import FACTS, consumption
from agent.correlate.episode import Episode, Verdict
from agent.correlate.view import View
from agent.correlate.words import number


def stopped(episode: Episode, _view: View) -> Iterator[Verdict]:
    c = consumption(episode)
    if c.gone:
        yield Verdict(CAUSE.name, 0.95, episode.scope, "the group has no consumers", (c.members, *c.rates))
    elif c.held:
        words = f"one that was delivered stays unacknowledged while {number(c.out or 0)} others per second are: whoever took it stopped, or holds it"
        yield Verdict(CAUSE.name, 0.65, episode.scope, words, (*c.rates, c.members))
    elif c.idle:
        more = f" any more{c.usual} per second" if c.out_was else f" while {number(c.arriving or 0)} messages per second arrived"
        yield Verdict(CAUSE.name, 0.9, episode.scope, f"nothing was acknowledged{more}", c.rates)


CAUSE = Cause("consumer_stopped", 100, "a group has no consumers, or they acknowledge nothing", {},
              "see whether the consumers run, and what they wait for: tickscope queues; tickscope query slow_syscall", {"queue_lag": stopped}, facts=FACTS)
