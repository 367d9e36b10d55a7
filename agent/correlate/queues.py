"""Symptoms of queues: consumer groups that fall behind or stand still."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from agent.common.copies import only, pick
from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.guard import Guard
from agent.correlate.rows import columns_of, groups, known
from agent.correlate.series import SECONDS
from agent.correlate.thresholds import SECOND, CorrelatorConfig
from agent.correlate.watch import Watch
from agent.correlate.words import text

#: What a symptom of queues reads.
READS = {
    "queue_lag": (
        "system",
        "cluster",
        "destination",
        "partition",
        "consumer_group",
        "lag_messages",
        "lag_s",
        "oldest_undelivered_s",
        "oldest_pending_s",
        "pending",
        "consumers",
        "in_per_s",
        "out_per_s",
        "status",
        "peer",
        "poll_ns",
        "holder",
        "idle_consumer",
        "idle_s",
    )
}
_WELL_NS = 200_000_000  # a poll that took longer says more of the server than of its queues
_AFTER_S = 2  # and so long after it, since what piled up is being taken
#: Metrics of what was delivered already: others may go on.
DELIVERED = ("pending_s", "idle_s")
_CAUGHT_UP = 1.5  # times the usual rate, beyond which a group makes up for what it did not do
_EVER_S = 3e9  # 95 years
_CARRY_S = 10  # a poll's answer stands for this long, so that slow polling does not look like recovery


def _nan(values: np.ndarray) -> np.ndarray:
    """Integers as floats, unknown as NaN."""
    return np.where(known(values), values, np.nan) if values.dtype.kind == "i" else values.astype(np.float64)


def _age(seconds: np.ndarray) -> np.ndarray:
    """What no message is old, a broker's mistake, is not known."""
    return np.where(np.abs(seconds) < _EVER_S, seconds, np.nan)


def _servers(q: np.ndarray) -> list[tuple[bytes, bytes]]:
    return list(zip(q["system"].tolist(), q["peer"].tolist(), strict=True))


class QueueWatch(Watch):
    """One subject is one consumer group of one destination (and partition) of a cluster, whichever server answers."""

    metrics = ("age_s", "pending_s", "lag", "pending", "in", "out", "consumers", "stuck", "at_s", "idle_s")

    def __init__(self, config: CorrelatorConfig, symptoms: Sequence[Symptom] = (), guard: Guard | None = None) -> None:
        super().__init__(config, symptoms, guard)
        self.names: dict[int, tuple[str, str, str, str, bytes]] = {}  # its last part: the server that answered last
        self._cluster: dict[int, str] = {}
        self.holders: dict[int, str] = {}  # who holds the oldest message that was delivered, by the last poll
        self.idle: dict[int, str] = {}  # and who has asked for nothing for longest
        self.fresh = np.empty(0, np.int64)  # the slots that were polled in the second, by a server that was well
        self._ill: dict[tuple[bytes, bytes], int] = {}

    def fill(self, second: int, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        slots = np.empty(0, np.int64)
        self.fresh = slots
        q = rows.get("queue_lag")
        if q is not None:
            self._note_slow_servers(q, second)
            q = only(q, (q["status"] != b"down") & (q["destination"] != b""))
        if q is not None and len(q):
            # In files of earlier versions no cluster is named: there it is the server.
            server = np.where(q["cluster"] == b"", q["peer"], np.zeros(1, q["peer"].dtype))
            names = [q[c] for c in ("system", "cluster", "destination", "partition", "consumer_group")]
            _, group = groups([server, *names])
            last = np.zeros(int(group.max()) + 1, np.int64)
            last[group] = np.arange(len(q))
            its = columns_of(q, last, "system", "destination", "partition", "consumer_group", "peer", "cluster")
            slots = np.array([self._slot(second, *one) for one in its], np.int64)
            q, slots = pick(q, last[slots >= 0]), slots[slots >= 0]
            self.fresh = slots[[server not in self._ill for server in _servers(q)]] if self._ill else slots
            for slot, holder, idle_one in zip(
                slots.tolist(), q["holder"].tolist(), q["idle_consumer"].tolist(), strict=True
            ):
                self.holders[slot], self.idle[slot] = text(holder), text(idle_one)
            lag = _nan(q["lag_messages"])
            undelivered, pending, idle = (_age(q[c]) for c in ("oldest_undelivered_s", "oldest_pending_s", "idle_s"))
            age = np.where(np.isnan(undelivered), _age(q["lag_s"]), undelivered)
            stuck = ((q["status"] == b"stuck") & (lag > 0) & (q["in_per_s"] > 0)).astype(np.float64)
            self.series.put(
                second,
                slots,
                age_s=np.where(lag == 0, 0.0, age),
                pending_s=np.where(_nan(q["pending"]) == 0, 0.0, pending),
                lag=lag,
                pending=_nan(q["pending"]),
                idle_s=idle,
                at_s=q["t_ns"] % SECOND / SECOND,
                out=q["out_per_s"],
                stuck=stuck,
                consumers=_nan(q["consumers"]),
                **{"in": q["in_per_s"]},
            )
        return self.series.carry(second, slots, _CARRY_S)

    def _note_slow_servers(self, q: np.ndarray, second: int) -> None:
        """Remembers servers that failed a poll, or took long for one: what messages wait for just after that tells
        nothing of those that take them.
        """
        ill = (q["status"] == b"down") | (q["poll_ns"] > _WELL_NS)
        self._ill = {server: at for server, at in self._ill.items() if at >= second - _AFTER_S}
        self._ill |= dict.fromkeys(_servers(pick(q, ill)), second)

    def _slot(self, second: int, *its: bytes) -> int:
        """its: system, destination, partition, consumer group, the server's address, cluster."""
        *names, raw, cluster = its
        system, destination, partition, group = map(text, names)
        slot = self.series.slot((system, destination, partition, group, cluster or raw), second)
        if slot >= 0:
            self.names[slot], self._cluster[slot] = (system, destination, partition, group, raw), text(cluster)
        return slot

    def place(self, symptom: str, slot: int, metric: str) -> tuple[str, int]:
        """A message that one consumer holds is a matter of its own: nobody may come for it for hours, and the queue may
        have other troubles meanwhile.
        """
        return (f"{symptom} of one" if metric in DELIVERED else symptom), slot

    def describe(self, symptom: str, slot: int) -> Episode:
        system, destination, partition, group, _ = self.names[slot]
        queue = f"{system} queue {destination}{f'/{partition}' if partition else ''}" + (
            f" group {group}" if group else ""
        )
        cluster = self._cluster[slot]
        scope = f"queue {destination}/{group}{f' of {cluster}' if cluster else ''}"
        episode = Episode(symptom, self.names[slot], slot, queue, scope, 0, 0, "", "", 0.0, 0.0, 0.0, 0)
        episode.keys = {
            "system": system,
            "cluster": cluster,
            "destination": destination,
            "partition": partition,
            "consumer_group": group,
        }
        return episode

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
                if metric == "in":
                    deficit = self.series.deficit(metric, episode.slot, second, bad, before)
                    episode.facts["in_owed"], episode.facts["in_more"] = deficit
        self._taken(episode, slot, second)

    def _taken(self, episode: Episode, slot: np.ndarray, second: int) -> None:
        """``taken``: messages acknowledged a second since it began, as far as is known; ``since_s``: how long that was
        at the last poll; ``crept``: whether some were, of which the first polls cannot tell since they were under way,
        and then none again.
        """
        begun = episode.start_ns / SECOND
        seconds = second - episode.start_ns // SECOND + 1
        if seconds > SECONDS:
            return
        rates, at = (self.series.recent(metric, slot, second, seconds)[0] for metric in ("out", "at_s"))
        polled = np.arange(second - seconds + 1, second + 1) + at
        after = polled > begun
        usual, arriving = episode.facts.get("out_base", 0.0), episode.facts.get("in_base", math.inf)
        if not episode.facts.get("in", 0.0) > _CAUGHT_UP * arriving:
            # Its last polls may tell already of what is made up for.
            caught_up = np.cumsum((rates <= _CAUGHT_UP * usual)[::-1])[::-1] == 0
            after &= ~caught_up
        if not after.any() or np.isnan(rates[after]).any():
            return
        since_s = float(polled[after][-1] - begun)
        # The first of these rates is of a time that had begun before.
        early = usual * max(0.0, 1.0 - float(polled[after][0] - begun))
        episode.facts["since_s"] = since_s
        took = rates[after][2:] > 0
        episode.facts["crept"] = float(np.any(took[:-1] & ~took[1:]))
        episode.facts["taken"] = max(0.0, float(rates[after].sum()) - early) / since_s
