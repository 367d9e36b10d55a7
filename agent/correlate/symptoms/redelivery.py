"""Messages that are redelivered repeatedly."""

from __future__ import annotations

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.queues import READS, QueueWatch
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Second
from agent.correlate.words import Words, opening, render, value, when


def judge(watch: QueueWatch, second: Second) -> None:
    """Redelivered messages at poll after poll. One consumer that ended, with what it held, is no repetition."""
    for slot, seen in watch.redelivered.items():
        if not seen.repeated or seen.last_ns < second.at * SECOND:
            continue
        if not watch.extended(SYMPTOM.name, slot, second.at, float(seen.times)):
            its = {"metric": "redelivered", "start_ns": seen.first_ns}
            watch.begin(SYMPTOM.name, slot, second.at, float(seen.times), 1, **its)


def clause(episode: Episode) -> Words:
    return render(
        "Messages of {queue} were redelivered repeatedly (in {n}) {when}",
        queue=opening(episode.subject),
        when=when(episode),
        n=value(episode.value, "poll"),
    )


SYMPTOM = Symptom(
    "redelivery",
    46,
    "messages are redelivered repeatedly",
    "a consumer group of a queue",
    "",
    "queue_lag",
    READS,
    clause,
    "find the message, and why its consumers reject it: their logs; limit its deliveries",
    QueueWatch,
    judge,
    measured={"redelivered": "redelivered"},
)
