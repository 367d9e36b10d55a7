"""Queues with unread messages that will soon be deleted for their age."""

from __future__ import annotations

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.queues import READS, QueueWatch
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Second
from agent.correlate.words import Words, measured, opening, render, when

#: Share of the retention that has passed for the first unread message, at this many polls in a row.
_SHARE, _POLLS = 0.8, 3


def judge(watch: QueueWatch, second: Second) -> None:
    """The first unread message has used most of its retention."""
    slots = watch.polled
    ages, left = (watch.series.recent(metric, slots, second.at, _POLLS) for metric in ("age_s", "left_s"))
    near = np.asarray((ages > 0) & (ages >= _SHARE * (ages + left))).all(axis=1)
    for i in np.flatnonzero(near):
        slot, age_s = int(slots[i]), float(ages[i, -1])
        episode = watch.extended(SYMPTOM.name, slot, second.at, age_s)
        if episode is None:
            its = {"metric": "age_s", "unit": "s", "start_ns": (second.at - _POLLS + 1) * SECOND}
            episode = watch.begin(SYMPTOM.name, slot, second.at, age_s, _POLLS, **its)
        episode.facts["left_s"] = float(left[i, -1])


def clause(episode: Episode) -> Words:
    left_s = episode.facts.get("left_s", 0.0)
    return render(
        "{queue} has unread messages that {deleted}: the first was {age} old {when}",
        queue=opening(episode.subject),
        deleted=render("may be deleted in {left}", left=measured(left_s, "s")) if left_s > 0 else "may be deleted now",
        age=measured(episode.value, "s"),
        when=when(episode),
    )


SYMPTOM = Symptom(
    "retention_near",
    38,
    "unread messages will soon be deleted for their age",
    "a consumer group of a queue",
    "s",
    "queue_lag",
    READS,
    clause,
    "raise the topic's retention.ms now, and then see why its consumers are so far behind: tickscope queues",
    QueueWatch,
    judge,
    measured={"age_s": "oldest_undelivered_s"},
    explained_by={"consumer_stopped": "queue_lag", "consumer_slow": "queue_lag"},
)
