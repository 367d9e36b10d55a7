"""Symptoms of messages that came twice or out of order, by ``message_order``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.rows import OfSecond, groups, known
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Second, Watch
from agent.correlate.words import Words, render, text, value, when
from agent.tables import TABLES

READS = {
    "message_order": (
        *("system", "cluster", "destination", "partition", "consumer_group", "source"),
        *("messages", "duplicates", "out_of_order", "duplicate_id", "repeated_s", "first_pid", "first_comm"),
        *("out_of_order_id", "behind"),
    )
}
_SAMPLE = TABLES["message_order"].code("source", "sample")
_LONGEST_S = 1e9
_QUEUE = ("system", "cluster", "destination", "partition", "consumer_group")


class OrderWatch(Watch):
    """One subject is one queue as one consumer group gets it, or as its producers filled it (``source`` sample)."""

    metrics = ("duplicates", "out_of_order", "messages")

    def __init__(self, *more: Any) -> None:
        super().__init__(*more)
        self._keys: dict[int, tuple[str, ...]] = {}
        #: By metric and slot: the rows of this second.
        self.worst: dict[tuple[str, int], np.void] = {}

    def fill(self, second: int, rows: OfSecond) -> np.ndarray:
        self.worst.clear()
        found = rows["message_order"]
        if not len(found):
            return np.empty(0, np.int64)
        first, group = groups([found[name] for name in (*_QUEUE, "source")])
        sums = {
            metric: np.bincount(group, np.where(known(found[metric]), found[metric], 0), len(first))
            for metric in self.metrics
        }
        slots = np.array([self._slot(found[i], second) for i in first], np.int64)
        for metric in self.metrics[:2]:
            for i in np.flatnonzero(found[metric] > 0):
                self.worst.setdefault((metric, int(slots[group[i]])), found[i])
        return self.put(second, slots, **sums)

    def _slot(self, row: np.void, second: int) -> int:
        key = (*(text(row[name]) for name in _QUEUE), "produced" if row["source"] == _SAMPLE else "consumed")
        slot = self.series.slot(key, second)
        if slot >= 0:
            self._keys[slot] = key
        return slot

    def describe(self, symptom: str, slot: int) -> Episode:
        system, cluster, destination, partition, group, how = self._keys[slot]
        queue = f"{system} queue {destination}".lstrip() + (f"/{partition}" if partition else "")
        scope = f"queue {destination}/{group}{f' of {cluster}' if cluster else ''}"
        subject = queue + (f" group {group}" if group else "")
        key = system, destination, partition, group, how.encode()
        episode = Episode(symptom, key, slot, subject, scope)
        episode.keys = dict(zip(_QUEUE, self._keys[slot], strict=False))
        episode.facts["produced"] = float(how == "produced")
        return episode


def judge(metric: str) -> Callable[[OrderWatch, Second], None]:
    """Bad: more of them in a second than usual, where none is usual as long as nothing is known."""

    def its(watch: OrderWatch, second: Second) -> None:
        counts = watch.series.recent(metric, second.slots, second.at, 1)[:, 0]
        usual = np.nan_to_num(watch.series.baseline(metric, second.slots, second.at, 1).high)
        for i in np.flatnonzero(counts > usual):
            slot, count = int(second.slots[i]), float(counts[i])
            total = float(watch.series.recent("messages", second.slots[i : i + 1], second.at, 1)[0, 0])
            episode = watch.extended(metric, slot, second.at, count)
            if episode is None:
                start_ns, base = second.at * SECOND, float(usual[i])
                episode = watch.begin(metric, slot, second.at, count, 1, metric=metric, start_ns=start_ns, base=base)
                _note(episode, watch.worst[metric, slot])
            facts = episode.facts
            facts[metric], facts["messages"] = facts.get(metric, 0.0) + count, facts.get("messages", 0.0) + total

    return its


def _note(episode: Episode, row: np.void) -> None:
    """Notes the id, and the facts, of the first such message."""
    episode.words = text(row["duplicate_id"] if episode.metric == "duplicates" else row["out_of_order_id"])
    for name in ("repeated_s", "behind", "first_pid"):
        if known(np.atleast_1d(row[name]))[0] and not (name == "repeated_s" and row[name] > _LONGEST_S):
            episode.facts[name] = float(row[name])


def symptom(how: str, first: Callable[[Episode], Words], **more: Any) -> Symptom:
    """What both have in common. how: the messages came; first: what the sentence has about the first of them."""
    metric = more["name"]

    def clause(episode: Episode) -> Words:
        facts = episode.facts
        n = facts.get(metric, episode.value)
        return render(
            "{n} of {all} {queue} {were} {came} {how} {when} ({id} {first})",
            n=value(n),
            were="was" if n == 1 else "were",
            all=value(facts.get("messages", episode.value), "message"),
            queue=render("of {queue}", queue=episode.subject),
            came="produced" if facts.get("produced") else "consumed",
            how=how,
            when=when(episode),
            id=episode.words,
            first=first(episode),
        )

    return Symptom(
        clause=clause,
        subject="a queue",
        unit="",
        table="message_order",
        reads=READS,
        watch=OrderWatch,
        judge=judge(metric),
        measured={metric: metric},
        **more,
    )
