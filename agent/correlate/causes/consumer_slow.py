"""A group's consumers take less than what comes."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.consumption import FACTS, READS, consumption
from agent.correlate.episode import Episode, Verdict
from agent.correlate.view import View
from agent.correlate.words import render, value


def slow(episode: Episode, view: View) -> Iterator[Verdict]:
    c = consumption(episode, view)
    if c.gone:
        return
    out = value(c.out, "message/s")
    if c.out is None:
        yield Verdict(CAUSE.name, 0.0, "", "the rate of acknowledgements is not known")
    elif c.held or c.idle or c.grown:
        return
    elif c.out_was is not None and c.out < 0.7 * c.out_was:
        yield Verdict(
            CAUSE.name,
            0.85 * c.sure,
            episode.scope,
            render("its consumers acknowledged only {out}{usual}", out=out, usual=c.usual),
            c.rates,
        )
    elif (
        c.arriving is not None
        and c.out < 0.95 * c.arriving
        and not c.arriving >= 1.5 * (c.arriving if c.arriving_was is None else c.arriving_was)
    ):
        words = render("its consumers acknowledged {out} while {arriving} arrived", out=out, arriving=value(c.arriving))
        yield Verdict(CAUSE.name, 0.7 * c.sure, episode.scope, words, c.rates)
    else:
        yield Verdict(
            CAUSE.name, 0.0, "", render("its consumers acknowledged {out}{usual}", out=out, usual=c.usual), c.rates
        )


CAUSE = Cause(
    "consumer_slow",
    120,
    "a group's consumers acknowledge less than what arrives, or than they usually do",
    READS,
    "see what each message costs them, or add consumers: tickscope queues",
    {"queue_lag": slow},
    facts=FACTS,
)
