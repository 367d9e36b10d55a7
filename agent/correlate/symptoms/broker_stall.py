"""Brokers that do not answer for a while."""

from __future__ import annotations

import math

import numpy as np

from agent.correlate.brokers import READS, BrokerWatch
from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.watch import Second
from agent.correlate.words import Words, measured, opening, render, when


def judge(watch: BrokerWatch, second: Second) -> None:
    """Bad: it took far longer than usual to answer a poll, or gave no answer (from the start: to three polls)."""
    if not any(p.unanswered or p.took_ns > watch.config.poll_stall_ns for p in watch.polls.values()):
        return
    usual = watch.series.baseline("poll_ns", second.slots, second.at, 1)
    bar = np.maximum(watch.config.poll_stall_ns, np.maximum(watch.config.stall_ratio * usual.median, 2 * usual.top))
    for i, slot in enumerate(second.slots.tolist()):
        poll = watch.polls[slot]
        if (poll.unanswered and (usual.seen[i] or poll.before >= 2)) or (
            not poll.down and poll.took_ns > bar[i] and usual.seen[i] >= 3
        ):
            watch.bad(SYMPTOM.name, slot, second.at, poll, float(usual.median[i]))


def clause(episode: Episode) -> Words:
    usually = "" if math.isnan(episode.base) else render(" (usually {base})", base=measured(episode.base, episode.unit))
    return render(
        "{broker} did not answer for {took}{usually} {when}",
        broker=opening(episode.subject),
        took=measured(episode.value, episode.unit),
        usually=usually,
        when=when(episode),
    )


SYMPTOM = Symptom(
    "broker_stall",
    70,
    "a broker takes far longer than usual to answer a poll, or does not answer",
    "a broker",
    "ns",
    "queue_lag",
    READS,
    clause,
    "check what blocked the broker or the network to it: tickscope explain last",
    BrokerWatch,
    judge,
    polled_by_agent=True,
    measured={"poll_ns": "poll_ns"},
)
