"""A group's consumers are gone, or acknowledge nothing."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.consumption import FACTS, READS, consumption, of_removed, polls_of
from agent.correlate.episode import UNKNOWN_CULPRIT, UNTAKEN, Episode, Verdict
from agent.correlate.view import View
from agent.correlate.words import render, text, value


def stopped(episode: Episode, view: View) -> Iterator[Verdict]:
    group = consumption(episode, view)
    others = value(group.out or 0, "message/s")
    if episode.metric == UNTAKEN:
        return  # it may be so on purpose
    if group.gone:
        yield Verdict(CAUSE.name, 0.95, episode.scope, "the group has no consumers", (group.members, *group.rates))
    elif group.grown:
        return
    elif group.held and group.who:
        words = render(
            "{who} stopped or holds its messages, while the others acknowledged {others}",
            who=group.who,
            others=others,
        )
        sure = group.sure * (0.9 if group.lone is not None else 0.75)
        yield Verdict(CAUSE.name, sure, episode.scope, words, (*group.rates, group.members), culprit=group.culprit)
    elif group.held:
        words = render(
            "one delivered message stays unacknowledged while {out} per second are acknowledged: its consumer stopped"
            " or holds it",
            out=value(group.out or 0, "other"),
        )
        yield Verdict(CAUSE.name, 0.65 * group.sure, episode.scope, words, (*group.rates, group.members))
    elif group.idle:
        more = (
            render(" (usually {usual})", usual=value(group.out_was, "message/s"))
            if group.out_was
            else render(" while {arriving} arrived", arriving=value(group.arriving or 0, "message/s"))
        )
        silent_clients = (
            render("; {n} stopped talking to the server", n=value(len(group.silent), "client")) if group.silent else ""
        )
        yield Verdict(
            CAUSE.name,
            group.sure * (0.9 if episode.facts.get("since_s", _SURE_S) >= _SURE_S else 0.8),
            episode.scope,
            render("nothing was acknowledged{more}{silent_clients}", more=more, silent_clients=silent_clients),
            group.rates,
            culprit=group.culprit if len(group.silent) <= 1 else UNKNOWN_CULPRIT,
        )
    elif group.lone is not None and group.one_less:
        words = render(
            "{who} stopped, and the others acknowledged only {others}{usual}",
            who=group.who,
            others=others,
            usual=group.usual,
        )
        yield Verdict(
            CAUSE.name, 0.88 * group.sure, episode.scope, words, (*group.rates, group.members), culprit=group.culprit
        )
    elif len(polls := polls_of(episode, view)) and polls["status"][-1] == b"stopped":
        words = render("{what}", what=text(polls["reason"][-1]).partition(",")[0])
        yield Verdict(CAUSE.name, 0.8 * group.sure, episode.scope, words, (*group.rates, group.members))


#: After this time without an acknowledgement, it is more than each consumer being busy with one message.
_SURE_S = 3.0
CAUSE = Cause(
    "consumer_stopped",
    100,
    "a group has no consumers, or they acknowledge nothing",
    READS,
    "see whether the consumers run, and what they wait for: tickscope queues; tickscope query slow_syscall",
    {"queue_lag": stopped, "entries_lost": of_removed("consumer_stopped", stopped, (b"stopped", b"stalled"))},
    facts=FACTS,
)
