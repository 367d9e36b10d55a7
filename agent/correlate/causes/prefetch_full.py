"""A queue's consumers hold as many messages as they may, and acknowledge none, so they get no others."""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.consumption import FACTS, READS, consumption, polls_of
from agent.correlate.episode import UNKNOWN_CULPRIT, Episode, Verdict, item
from agent.correlate.rows import known
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View
from agent.correlate.words import render, value

#: Polls with the same number of unacknowledged messages, while others wait.
_POLLS = 3
#: Brokers that send messages before they are asked for, up to a number.
_PUSH = ("rabbitmq", "celery")
_BEFORE_NS = 60 * SECOND  # in this time they never held more


def exhausted(episode: Episode, view: View) -> Iterator[Verdict]:
    if episode.key[0] not in _PUSH:
        return
    group = consumption(episode, view)
    before, polls = polls_of(episode, view, _BEFORE_NS)["pending"], polls_of(episode, view)
    polls = polls[known(polls["pending"]) & (polls["lag_messages"] > 0)][-_POLLS:]
    held = polls["pending"]
    if group.gone or len(held) < _POLLS or held[0] <= 0 or (held != held[0]).any():
        return
    usual = episode.facts.get("pending_base", 0.0)
    if not group.idle or held[0] <= usual or held[0] < before.max():
        return
    words = render(
        "its consumers hold {held} (usually {usual}) and acknowledge none, so they get no more",
        held=value(int(held[0]), "message"),
        usual=value(usual),
    )
    entry = item(
        "queue_lag",
        "unacknowledged messages",
        int(held[0]),
        "",
        column="pending",
        baseline=usual,
        keys=episode.keys,
    )
    yield Verdict(
        CAUSE.name,
        group.sure * 0.93,
        episode.scope,
        words,
        (entry, *group.rates),
        culprit=group.culprit if len(group.silent) == 1 else UNKNOWN_CULPRIT,
    )


CAUSE = Cause(
    "prefetch_full",
    98,
    "a queue's consumers hold as many messages as they may (prefetch), and acknowledge none",
    {**READS, "queue_lag": (*READS["queue_lag"], "pending", "lag_messages")},
    "see what the consumers wait for: tickscope query slow_syscall; a deadlock, or a call without a timeout",
    {"queue_lag": exhausted},
    facts=(*FACTS, "pending"),
)
