"""A group's consumers are gone, or acknowledge nothing."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.consumption import FACTS, READS, consumption
from agent.correlate.episode import UNKNOWN_CULPRIT, Episode, Verdict
from agent.correlate.view import View
from agent.correlate.words import render, value


def stopped(episode: Episode, view: View) -> Iterator[Verdict]:
    c = consumption(episode, view)
    others = value(c.out or 0, "message/s")
    if c.gone:
        yield Verdict(CAUSE.name, 0.95, episode.scope, "the group has no consumers", (c.members, *c.rates))
    elif c.grown:
        return
    elif c.held and c.who:
        words = render(
            "{who} stopped or holds its messages, while the others acknowledged {others}",
            who=c.who,
            others=others,
        )
        sure = c.sure * (0.9 if c.lone is not None else 0.75)
        yield Verdict(CAUSE.name, sure, episode.scope, words, (*c.rates, c.members), culprit=c.culprit)
    elif c.held:
        words = render(
            "one delivered message stays unacknowledged while {out} per second are acknowledged: its consumer stopped"
            " or holds it",
            out=value(c.out or 0, "other"),
        )
        yield Verdict(CAUSE.name, 0.65 * c.sure, episode.scope, words, (*c.rates, c.members))
    elif c.idle:
        more = (
            render(" (usually {usual})", usual=value(c.out_was, "message/s"))
            if c.out_was
            else render(" while {arriving} arrived", arriving=value(c.arriving or 0, "message/s"))
        )
        silent_clients = (
            render("; {n} stopped talking to the server", n=value(len(c.silent), "client")) if c.silent else ""
        )
        yield Verdict(
            CAUSE.name,
            c.sure * (0.9 if episode.facts.get("since_s", _SURE_S) >= _SURE_S else 0.8),
            episode.scope,
            render("nothing was acknowledged{more}{silent_clients}", more=more, silent_clients=silent_clients),
            c.rates,
            culprit=c.culprit if len(c.silent) <= 1 else UNKNOWN_CULPRIT,
        )
    elif c.lone is not None and c.one_less:
        words = render(
            "{who} stopped, and the others acknowledged only {others}{usual}", who=c.who, others=others, usual=c.usual
        )
        yield Verdict(CAUSE.name, 0.88 * c.sure, episode.scope, words, (*c.rates, c.members), culprit=c.culprit)


#: From then on nothing acknowledged is more than each consumer busy with one message.
_SURE_S = 3.0
CAUSE = Cause(
    "consumer_stopped",
    100,
    "a group has no consumers, or they acknowledge nothing",
    READS,
    "see whether the consumers run, and what they wait for: tickscope queues; tickscope query slow_syscall",
    {"queue_lag": stopped},
    facts=FACTS,
)
