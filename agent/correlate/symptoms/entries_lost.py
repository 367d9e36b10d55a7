"""Brokers that lost what they had, at a fail-over or a restart, and queues whose messages were removed unread."""

from __future__ import annotations

from agent.correlate.brokers import READS, BrokerWatch
from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.queues import READS as QUEUES
from agent.correlate.queues import QueueWatch
from agent.correlate.watch import Second
from agent.correlate.words import Words, opening, render, value, when

#: What removes messages, by system. Which of these it was is not reported.
_BY = {
    "redis": "the stream's limit, XTRIM or XDEL",
    "kafka": "the topic's retention or DeleteRecords",
    "nats": "the stream's limits or a purge",
}


def judge(watch: BrokerWatch, second: Second) -> None:
    """Bad: its data are older than at an earlier poll. It says so for a minute."""
    for slot, poll in watch.polls.items():
        if not poll.lost:
            continue
        if watch.extended(SYMPTOM.name, slot, second.at, 1.0, poll.end_ns):
            continue
        its = {"metric": "lost", "words": poll.lost, "start_ns": poll.start_ns, "end_ns": poll.end_ns}
        watch.begin(SYMPTOM.name, slot, second.at, 1.0, 1, **its)


def removed(watch: QueueWatch, second: Second) -> None:
    """Bad: more of its messages were removed before its consumers read them."""
    for slot, removal in watch.removals.items():
        episode = watch.active.get((SYMPTOM.name, slot))
        if episode is not None:
            watch.extend(episode, second.at, episode.value + removal.messages, removal.to_ns)
            continue
        its = {"metric": "removed", "start_ns": removal.from_ns, "end_ns": removal.to_ns}
        watch.begin(SYMPTOM.name, slot, second.at, float(removal.messages), 1, **its)


def clause(episode: Episode) -> Words:
    if episode.metric == "removed":
        by = _BY.get(str(episode.keys.get("system", "")), "")
        return render(
            "{n} of {queue} were removed{by} before they were read {when}",
            n=value(episode.value, "message"),
            queue=episode.subject,
            by=f" by {by}" if by else "",
            when=when(episode),
        )
    return render(
        "{broker} lost data {when}: {what}", broker=opening(episode.subject), when=when(episode), what=episode.words
    )


SYMPTOM = Symptom(
    "entries_lost",
    37,
    "a broker lost stored entries in a fail-over or a restart, or removed messages before they were read",
    "a broker, or a consumer group of a queue",
    "",
    "queue_lag",
    {"queue_lag": (*READS["queue_lag"], *QUEUES["queue_lag"])},
    clause,
    "see what was written meanwhile, and whether it can be sent again; require replicas (min-replicas-to-write); for"
    " unread messages raise the limit of the stream or the retention of the topic, or add consumers",
    BrokerWatch,
    judge,
    also={QueueWatch: removed},
    polled_by_agent=True,
    adopted=False,
    measured={"lost": "status", "removed": "removed"},
)
