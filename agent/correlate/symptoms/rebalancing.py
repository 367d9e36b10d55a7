"""Consumer groups with partitions that are reassigned repeatedly."""

from __future__ import annotations

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.queues import READS, QueueWatch
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Second
from agent.correlate.words import Words, measured, opening, render, value, when

#: A consumer that stops leads to one rebalance, and so does one that starts. A rebalance usually takes less than this.
_STORM, _UNSTABLE_S, _WITHIN_S = 3, 6, 30
_LASTS_S = 10  # it goes on while there was one in this time
_RATIO = 3  # times as many in the same time as in the rest of two minutes
_BEFORE_S = 120


def judge(watch: QueueWatch, second: Second) -> None:
    """More rebalances within half a minute than a consumer that comes or goes explains, and than usual."""
    slots = watch.polled
    if not len(slots):
        return
    counts = watch.series.recent("rebalances", slots, second.at, _BEFORE_S)
    unstable = watch.series.recent("unstable", slots, second.at, _WITHIN_S)
    times, took = _more(counts[:, -_WITHIN_S:]), np.nansum(unstable, axis=1)
    goes_on = (_more(counts[:, -_LASTS_S:]) > 0) | (np.nansum(unstable[:, -_LASTS_S:], axis=1) > 0)
    many = ((times >= _STORM) | (took >= _UNSTABLE_S)) & (
        times * (_BEFORE_S - _WITHIN_S) > _RATIO * _WITHIN_S * _more(counts[:, :-_WITHIN_S])
    )
    for i in np.flatnonzero(goes_on):
        slot = int(slots[i])
        episode = watch.extended(SYMPTOM.name, slot, second.at, float(times[i]))
        if episode is None and not many[i]:
            continue
        if episode is None:
            first = int(np.argmax(counts[i, -_WITHIN_S:] > np.nanmin(counts[i, -_WITHIN_S:])))
            its = {"metric": "rebalances", "start_ns": (second.at - _WITHIN_S + 1 + first) * SECOND}
            episode = watch.begin(SYMPTOM.name, slot, second.at, float(times[i]), 1, **its)
        episode.facts["unstable_s"] = max(episode.facts.get("unstable_s", 0.0), float(took[i]))


def _more(counts: np.ndarray) -> np.ndarray:
    """By how much each row of a growing count grew; 0 if it is not known."""
    known = ~np.isnan(counts)
    low = np.min(counts, axis=1, initial=np.inf, where=known)
    high = np.max(counts, axis=1, initial=-np.inf, where=known)
    return np.asarray(np.where(known.any(axis=1), high - low, 0.0))


def clause(episode: Episode) -> Words:
    unstable = episode.facts.get("unstable_s", 0.0)
    return render(
        "The partitions of {queue} were reassigned {n} {when}{unstable}",
        queue=opening(episode.subject),
        n=value(episode.value, "time"),
        when=when(episode),
        unstable=render(", {took} of it without an assignment", took=measured(unstable, "s")) if unstable else "",
    )


SYMPTOM = Symptom(
    "rebalancing",
    43,
    "the partitions of a consumer group are reassigned repeatedly",
    "a consumer group of a queue",
    "",
    "queue_lag",
    READS,
    clause,
    "see which member joins and leaves, and why: its log, session.timeout.ms, max.poll.interval.ms",
    QueueWatch,
    judge,
    measured={"rebalances": "rebalances"},
    explained_by={"rebalance": "queue_lag"},
)
