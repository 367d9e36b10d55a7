"""Symptoms of queues: consumer groups that fall behind or stand still."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.config import SECOND, CorrelatorConfig
from agent.correlate.episode import Episode
from agent.correlate.guard import Guard
from agent.correlate.rows import groups, known
from agent.correlate.watch import Watch
from agent.correlate.words import peer, text

#: What a symptom of queues reads.
READS = {"queue_lag": ("system", "destination", "partition", "consumer_group", "lag_messages", "lag_s", "oldest_undelivered_s", "oldest_pending_s",
                       "pending", "consumers", "in_per_s", "out_per_s", "status", "peer")}  # fmt: skip
_CARRY_S = 10  # a poll's answer stands for this long, so that slow polling does not look like recovery


def _nan(values: np.ndarray) -> np.ndarray:
    """Integers as floats, unknown as NaN."""
    return np.where(known(values), values, np.nan) if values.dtype.kind == "i" else values.astype(np.float64)


class QueueWatch(Watch):
    """One subject is one consumer group of one destination (and partition)."""

    metrics = ("age_s", "pending_s", "lag", "in", "out", "consumers", "stuck")

    def __init__(self, config: CorrelatorConfig, symptoms: Sequence[Symptom] = (), guard: Guard | None = None) -> None:
        super().__init__(config, symptoms, guard)
        self.names: dict[int, tuple[str, ...]] = {}

    def fill(self, second: int, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        slots = np.empty(0, np.int64)
        q = rows.get("queue_lag")
        if q is not None:
            q = q[q["status"] != b"down"]
        if q is not None and len(q):
            _, group = groups([q[c] for c in ("system", "peer", "destination", "partition", "consumer_group")])
            last = np.zeros(int(group.max()) + 1, np.int64)
            last[group] = np.arange(len(q))
            q = q[last]
            slots = np.array([self._slot(r, second) for r in q], np.int64)
            q, slots = q[slots >= 0], slots[slots >= 0]
            lag = _nan(q["lag_messages"])
            age = np.where(np.isnan(q["oldest_undelivered_s"]), q["lag_s"], q["oldest_undelivered_s"])
            stuck = ((q["status"] == b"stuck") & (lag > 0) & (q["in_per_s"] > 0)).astype(np.float64)
            self.series.put(second, slots, age_s=np.where(lag == 0, 0.0, age),
                            pending_s=np.where(_nan(q["pending"]) == 0, 0.0, q["oldest_pending_s"]),
                            lag=lag, out=q["out_per_s"], stuck=stuck, consumers=_nan(q["consumers"]), **{"in": q["in_per_s"]})
        return self.series.carry(second, slots, _CARRY_S)

    def _slot(self, row: np.void, second: int) -> int:
        key = (*(text(row[c]) for c in ("system", "destination", "partition", "consumer_group")), peer(row["peer"].tobytes()))
        slot = self.series.slot(key, second)
        if slot >= 0:
            self.names[slot] = key
        return slot

    def describe(self, symptom: str, slot: int) -> Episode:
        system, destination, partition, group, _ = self.names[slot]
        queue = f"{system} queue {destination}{f'/{partition}' if partition else ''}" + (f" group {group}" if group else "")
        return Episode(symptom, self.names[slot], slot, queue, f"queue {destination}/{group}", 0, 0, "", "", 0.0, 0.0, 0.0, 0)

    def settle(self, second: int) -> None:
        for episode in self.active.values():
            if episode.last_bad == second:  # What holds once it is over explains nothing.
                self._facts(episode, second)

    def _facts(self, episode: Episode, second: int) -> None:
        slot = np.array([episode.slot])
        bad = max(1, min(60, second - episode.start_ns // SECOND + 1))
        for metric in self.metrics:
            now = self.series.recent(metric, slot, second, bad)[0]
            now = now[~np.isnan(now)]
            if not len(now):
                continue
            episode.facts[metric] = float(np.median(now) if metric in ("in", "out") else now[-1])
            # A message must be old before it is late: the trouble began a little before the symptom.
            before = float(self.series.baseline(metric, slot, second, bad + int(self.config.age_rise_s) + 1).median[0])
            if not math.isnan(before):
                episode.facts[f"{metric}_base"] = before
