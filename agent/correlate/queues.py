"""Symptoms of queues: consumer groups that fall behind, brokers that stall or go away, accept queues that overflow."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from agent.correlate.config import SECOND, CorrelatorConfig
from agent.correlate.episode import Episode
from agent.correlate.rows import groups, known, start_ticks
from agent.correlate.watch import Rise, Watch
from agent.correlate.words import address, process, text
from agent.tables import TABLES

_ACCEPT = TABLES["socket_queue"].code("kind", "accept")
_CARRY_S = 10  # a poll's answer stands for this long, so that slow polling does not look like recovery


def _nan(values: np.ndarray) -> np.ndarray:
    """Integers as floats, unknown as NaN."""
    return np.where(known(values), values, np.nan) if values.dtype.kind == "i" else values.astype(np.float64)


class QueueWatch(Watch):
    """One subject is one consumer group of one destination (and partition)."""

    metrics = ("age_s", "pending_s", "lag", "in", "out", "consumers")

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self.names: dict[int, tuple[str, str, str, str]] = {}
        self._rises = (
            Rise("queue_lag", "age_s", "s", config.age_rise_s, 2.0),
            Rise("queue_lag", "pending_s", "s", config.pending_rise_s, 2.0),
            Rise("queue_lag", "lag", "messages", config.lag_rise, 3.0),
        )

    def fill(self, second: int, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        slots = np.empty(0, np.int64)
        q = rows.get("queue_lag")
        if q is not None:
            q = q[q["status"] != b"down"]
        if q is not None and len(q):
            _, group = groups([q[c] for c in ("system", "destination", "partition", "consumer_group")])
            last = np.zeros(int(group.max()) + 1, np.int64)
            last[group] = np.arange(len(q))
            q = q[last]
            slots = np.array([self._slot(r, second) for r in q], np.int64)
            q, slots = q[slots >= 0], slots[slots >= 0]
            lag = _nan(q["lag_messages"])
            age = np.where(np.isnan(q["oldest_undelivered_s"]), q["lag_s"], q["oldest_undelivered_s"])
            self.series.put(second, slots, age_s=np.where(lag == 0, 0.0, age),
                            pending_s=np.where(_nan(q["pending"]) == 0, 0.0, q["oldest_pending_s"]),
                            lag=lag, out=q["out_per_s"], consumers=_nan(q["consumers"]), **{"in": q["in_per_s"]})
        return self.series.carry(second, slots, _CARRY_S)

    def _slot(self, row: np.void, second: int) -> int:
        key = tuple(text(row[c]) for c in ("system", "destination", "partition", "consumer_group"))
        slot = self.series.slot(key, second)
        if slot >= 0:
            self.names[slot] = (key[0], key[1], key[2], key[3])
        return slot

    def describe(self, symptom: str, slot: int) -> Episode:
        system, destination, partition, group = self.names[slot]
        queue = f"{system} queue {destination}{f'/{partition}' if partition else ''}" + (f" group {group}" if group else "")
        return Episode(symptom, self.names[slot], slot, queue, f"queue {destination}/{group}", 0, 0, "", "", 0.0, 0.0, 0.0, 0)

    def judge(self, second: int, slots: np.ndarray, rows: Mapping[str, np.ndarray]) -> list[Episode]:
        ages = self.series.recent("age_s", slots, second, self.config.persist_s)
        aged = ~np.all(np.isnan(ages), axis=1)
        every = np.ones(len(slots), np.bool_)
        opened: list[Episode] = []
        for rise in self._rises:
            opened += self.rises(rise, second, slots, every if rise.metric != "lag" else ~aged)
        for episode in self.active.values():
            self._facts(episode, second)
        return opened

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


class BrokerWatch(Watch):
    """One subject is one broker, as far as the rows tell brokers apart: by system."""

    metrics = ("poll_ns", "down")

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self.names: dict[int, str] = {}
        self._reason: dict[int, str] = {}
        self._run: dict[int, tuple[int, int]] = {}

    def fill(self, second: int, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        q = rows.get("queue_lag")
        if q is None:
            return np.empty(0, np.int64)
        first, group = groups([q["system"]])
        slots = np.array([self.series.slot((bytes(q["system"][i]),), second) for i in first], np.int64)
        down = np.bincount(group, q["status"] == b"down") > 0
        poll = np.zeros(len(first))
        np.maximum.at(poll, group, np.where(known(q["poll_ns"]), q["poll_ns"], 0))
        self._worst = q[np.lexsort((q["poll_ns"], q["status"] == b"down"))]
        for i, slot in zip(first, slots, strict=True):
            self.names[int(slot)] = text(q["system"][i])
        for row in q[q["status"] == b"down"]:
            self._reason[int(self.series.slot((bytes(row["system"]),), second))] = text(row["reason"])
        fits = slots >= 0
        self.series.put(second, slots[fits], poll_ns=np.where(down, np.nan, poll)[fits], down=down[fits].astype(np.float64))
        return slots[fits]

    def describe(self, symptom: str, slot: int) -> Episode:
        system = self.names[slot]
        return Episode(symptom, (system,), slot, f"the {system} broker", f"broker {system}", 0, 0, "", "", 0.0, 0.0, 0.0, 0)

    def judge(self, second: int, slots: np.ndarray, rows: Mapping[str, np.ndarray]) -> list[Episode]:
        opened = []
        poll = self.series.recent("poll_ns", slots, second, 1)[:, 0]
        down = self.series.recent("down", slots, second, 1)[:, 0]
        usual = self.series.baseline("poll_ns", slots, second, 1)
        bar = np.maximum(self.config.poll_stall_ns, np.maximum(self.config.stall_ratio * usual.median, 3 * usual.top))
        for i, slot in enumerate(map(int, slots)):
            system = self.names[slot].encode()
            mine = self._worst[self._worst["system"] == system]
            worst = mine[-1]
            end, took = int(worst["t_ns"]), max(0, int(worst["poll_ns"]))
            if down[i]:
                begun, run = self._run.get(slot, (end - took, 0))
                self._run[slot] = begun, run + 1
                if run + 1 >= (1 if usual.seen[i] else 3):
                    opened += self._bad("broker_down", slot, second, begun, end, float(end - begun), 0.0)
            else:
                self._run.pop(slot, None)
                if poll[i] > bar[i] and usual.seen[i] >= 3:
                    opened += self._bad("broker_stall", slot, second, end - took, end, float(poll[i]), float(usual.median[i]))
        return opened

    def _bad(self, symptom: str, slot: int, second: int, start: int, end: int, value: float, base: float) -> list[Episode]:
        episode = self.active.get((symptom, slot))
        if episode is not None:
            self.extend(episode, second, value, end)
            return []
        episode = self.describe(symptom, slot)
        episode.metric, episode.unit, episode.start_ns, episode.end_ns = "poll_ns" if symptom == "broker_stall" else "down_ns", "ns", start, end
        episode.base, episode.words = base, self._reason.get(slot, "") if symptom == "broker_down" else ""
        self.open(episode, second, value, 1)
        return [episode]


class AcceptWatch(Watch):
    """One subject is one listening socket."""

    metrics = ("queue", "limit", "fill", "overflows")

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self.names: dict[int, tuple[str, int, int, int, str]] = {}

    def fill(self, second: int, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        s = rows.get("socket_queue")
        if s is not None:
            s = s[(s["kind"] == _ACCEPT) & (s["limit"] > 0)]
        if s is None or not len(s):
            return np.empty(0, np.int64)
        first, group = groups([s["pid"], start_ticks(s), s["saddr"], s["sport"]])
        slots = np.array([self._slot(s[i], second) for i in first], np.int64)
        queue, overflows = np.zeros(len(first)), np.zeros(len(first))
        np.maximum.at(queue, group, s["queue"])
        np.maximum.at(overflows, group, np.where(known(s["overflows"]), s["overflows"], 0))
        limit = s["limit"][first].astype(np.float64)
        fits = slots >= 0
        self.series.put(second, slots[fits], queue=queue[fits], limit=limit[fits], fill=(queue / limit)[fits], overflows=overflows[fits])
        return slots[fits]

    def _slot(self, row: np.void, second: int) -> int:
        pid, tick = int(row["pid"]) if row["pid"] > 0 else -1, int(row["proc_start_ns"]) // 10_000_000
        where, port = address(row["saddr"].tobytes()) or "*", int(row["sport"])
        slot = self.series.slot((pid, tick, where, port), second)
        if slot >= 0:
            self.names[slot] = (where, port, pid, tick, text(row["comm"]))
        return slot

    def describe(self, symptom: str, slot: int) -> Episode:
        where, port, pid, tick, comm = self.names[slot]
        name = f"accept queue of {f'[{where}]' if ':' in where else where}:{port}"
        who = f" ({process(comm, pid)})" if pid > 0 else ""
        return Episode(symptom, (where, port, pid), slot, name + who, f"{pid}/{tick}" if pid > 0 else f"port {port}", 0, 0, "", "", 0.0, 0.0, 0.0, 0,
                       pid=pid if pid > 0 else None, start_tick=tick, comm=comm)

    def judge(self, second: int, slots: np.ndarray, rows: Mapping[str, np.ndarray]) -> list[Episode]:
        """Bad: it was full for three seconds, or was nearly full while the host counted overflows."""
        fill = self.series.recent("fill", slots, second, 3)
        count = self.series.recent("overflows", slots, second, 3)
        more = count[:, -1] - np.nanmin(count, axis=1)
        full = np.all(fill >= 1, axis=1) | ((np.nanmax(fill, axis=1) >= 0.75) & (more > 0))
        opened = []
        for i in np.flatnonzero(full):
            slot, dropped = int(slots[i]), float(more[i])
            queue = float(np.nanmax(self.series.recent("queue", slots[i : i + 1], second, 3)))
            episode = self.active.get(("accept_overflow", slot))
            if episode is not None:
                self.extend(episode, second, queue)
            else:
                episode = self.describe("accept_overflow", slot)
                episode.metric, episode.unit, episode.start_ns = "queue", "connections", (second - 2) * SECOND
                usual = self.series.baseline("queue", slots[i : i + 1], second, 3)
                episode.base = float(usual.median[0])
                episode.facts["overflows_first"] = float(count[i, -1]) - dropped
                self.open(episode, second, queue, 3)
                opened.append(episode)
            episode.facts["limit"] = float(self.series.recent("limit", slots[i : i + 1], second, 1)[0, 0])
            episode.facts["overflows"] = float(count[i, -1]) - episode.facts["overflows_first"]
        return opened
