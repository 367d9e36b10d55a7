"""Brokers that are unreachable."""

from __future__ import annotations

from agent.correlate.brokers import READS, BrokerWatch
from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.watch import Second
from agent.correlate.words import Words, opening, render, when


def judge(watch: BrokerWatch, second: Second) -> None:
    """Bad: the broker refused or failed a poll (from the start: three polls)."""
    if not any(poll.down for poll in watch.polls.values()):
        return
    usual = watch.series.baseline("poll_ns", second.slots, second.at, 1)
    for i, slot in enumerate(second.slots.tolist()):
        poll = watch.polls[slot]
        if poll.down and not poll.unanswered and (usual.seen[i] or poll.before >= 2):
            watch.bad(SYMPTOM.name, slot, second.at, poll, float(usual.median[i]))


def clause(episode: Episode) -> Words:
    return render("{broker} was down {when}", broker=opening(episode.subject), when=when(episode))


SYMPTOM = Symptom(
    "broker_down",
    60,
    "a broker refuses connections, or fails its polls",
    "a broker",
    "ns",
    "queue_lag",
    READS,
    clause,
    "check whether it runs, and how the poll failed: tickscope queues",
    BrokerWatch,
    judge,
    polled_by_agent=True,
    measured={"poll_ns": "poll_ns"},
)
