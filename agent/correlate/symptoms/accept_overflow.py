"""Accept queues that overflow."""

from __future__ import annotations

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.listeners import READS, AcceptWatch
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Second
from agent.correlate.words import Words, render, value, when

_NEARLY = 0.75


def judge(watch: AcceptWatch, second: Second) -> None:
    """Bad: the queue was full for three seconds, or was nearly full and dropped connections."""
    series, at, slots = watch.series, second.at, second.slots
    fill, count = series.recent("fill", slots, at, 3), series.recent("drops", slots, at, 3)
    more = count[:, -1] - np.fmin.reduce(count, axis=1)
    full = np.all(fill >= 1, axis=1) | ((np.fmax.reduce(fill, axis=1) >= _NEARLY) & (more > 0))
    for i in np.flatnonzero(full):
        slot, dropped = int(slots[i]), float(more[i])
        queue = float(np.nanmax(series.recent("queue", slots[i : i + 1], at, 3)))
        episode = watch.extended(SYMPTOM.name, slot, at, queue)
        if episode is None:
            base = float(series.baseline("queue", slots[i : i + 1], at, 3).median[0])
            start_ns = (at - _since(fill[i])) * SECOND
            its = {"metric": "queue", "unit": SYMPTOM.unit, "start_ns": start_ns, "base": base}
            episode = watch.begin(SYMPTOM.name, slot, at, queue, 3, **its)
            episode.facts["drops_first"] = float(count[i, -1]) - dropped
        episode.facts["limit"] = float(series.recent("limit", slots[i : i + 1], at, 1)[0, 0])
        episode.facts["drops"] = float(count[i, -1]) - episode.facts["drops_first"]


def _since(fill: np.ndarray) -> int:
    """How many seconds ago it became nearly full; fill: of the last seconds."""
    return len(fill) - 1 - int(np.flatnonzero(fill >= _NEARLY)[0])


def clause(episode: Episode) -> Words:
    return render(
        "The {queue} had {held} waiting (limit: {limit}) {when}",
        queue=episode.subject,
        held=value(episode.value, "connection"),
        limit=value(episode.facts.get("limit")),
        when=when(episode),
    )


SYMPTOM = Symptom(
    "accept_overflow",
    50,
    "an accept queue is full: connections arrive faster than the program accepts them",
    "a listening socket",
    "connections",
    "socket_queue",
    READS,
    clause,
    "check what the listening program does instead of accepting: tickscope query slow_syscall",
    AcceptWatch,
    judge,
    measured={"queue": "queue"},
)
