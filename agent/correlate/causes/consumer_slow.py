"""A group's consumers acknowledge less than what arrives."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.consumption import FACTS, READS, consumption
from agent.correlate.episode import Episode, Verdict
from agent.correlate.view import View
from agent.correlate.words import render, value


def slow(episode: Episode, view: View) -> Iterator[Verdict]:
    group = consumption(episode, view)
    if group.gone:
        return
    out = value(group.out, "message/s")
    if group.out is None:
        yield Verdict(CAUSE.name, 0.0, "", "the rate of acknowledgements is not known")
    elif group.held or group.idle or group.grown:
        return
    elif group.out_was is not None and group.out < 0.7 * group.out_was:
        yield Verdict(
            CAUSE.name,
            0.85 * group.sure,
            episode.scope,
            render("its consumers acknowledged only {out}{usual}", out=out, usual=group.usual),
            group.rates,
        )
    elif (
        group.arriving is not None
        and group.out < 0.95 * group.arriving
        and not group.arriving >= 1.5 * (group.arriving if group.arriving_was is None else group.arriving_was)
    ):
        words = render(
            "its consumers acknowledged {out} while {arriving} arrived", out=out, arriving=value(group.arriving)
        )
        yield Verdict(CAUSE.name, 0.7 * group.sure, episode.scope, words, group.rates)
    else:
        yield Verdict(
            CAUSE.name,
            0.0,
            "",
            render("its consumers acknowledged {out}{usual}", out=out, usual=group.usual),
            group.rates,
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
