"""Brokers that lost what they had, at a fail-over or a restart."""

from __future__ import annotations

from agent.correlate.brokers import READS, BrokerWatch
from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.watch import Second
from agent.correlate.words import Words, opening, render, when


def judge(watch: BrokerWatch, second: Second) -> list[Episode]:
    """Bad: its data are older than at an earlier poll. It says so for a minute."""
    opened = []
    for slot, poll in watch.polls.items():
        if not poll.lost:
            continue
        episode = watch.active.get((SYMPTOM.name, slot))
        if episode is not None:
            watch.extend(episode, second.at, 1.0, poll.end_ns)
            continue
        episode = watch.describe(SYMPTOM.name, slot)
        episode.metric, episode.words = "lost", poll.lost
        episode.start_ns, episode.end_ns = poll.start_ns, poll.end_ns
        watch.open(episode, second.at, 1.0, 1)
        opened.append(episode)
    return opened


def clause(episode: Episode) -> Words:
    return render(
        "{broker} lost data {when}: {what}", broker=opening(episode.subject), when=when(episode), what=episode.words
    )


SYMPTOM = Symptom(
    "entries_lost",
    65,
    "a broker lost stored entries in a fail-over or a restart",
    "a broker",
    "",
    "queue_lag",
    READS,
    clause,
    "see what was written meanwhile, and whether it can be sent again; require replicas (min-replicas-to-write)",
    BrokerWatch,
    judge,
    polled_by_agent=True,
    measured={"lost": "status"},
)
