"""Symptoms of servers: brokers that stall or go away, accept queues that overflow."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from agent.correlate.config import SECOND, CorrelatorConfig
from agent.correlate.episode import Episode
from agent.correlate.rows import groups, known, start_ticks
from agent.correlate.watch import Watch
from agent.correlate.words import address, peer, process, text
from agent.tables import TABLES

_ACCEPT = TABLES["socket_queue"].code("kind", "accept")
_NO_ANSWER = ("timed out", "timeout", "no answer", "did not answer")


class BrokerWatch(Watch):
    """One subject is one broker: a system at a peer."""

    metrics = ("poll_ns", "down")

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self.names: dict[int, tuple[str, bytes]] = {}
        self._begun: dict[int, tuple[int, int]] = {}

    def fill(self, second: int, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        q = rows.get("queue_lag")
        self._worst: dict[int, np.void] = {}
        if q is None:
            return np.empty(0, np.int64)
        q = q[np.lexsort((q["poll_ns"], q["status"] == b"down"))]  # the worst of each broker comes last
        _, group = groups([q["system"], q["peer"]])
        last = np.zeros(int(group.max()) + 1, np.int64)
        last[group] = np.arange(len(q))
        q = q[last]
        slots = np.array([self._slot(row, second) for row in q], np.int64)
        q, slots = q[slots >= 0], slots[slots >= 0]
        self._worst = dict(zip(slots.tolist(), q, strict=True))
        down = q["status"] == b"down"
        self.series.put(second, slots, poll_ns=np.where(down | ~known(q["poll_ns"]), np.nan, q["poll_ns"]), down=down.astype(np.float64))
        return slots

    def _slot(self, row: np.void, second: int) -> int:
        key = text(row["system"]), row["peer"].tobytes()
        slot = self.series.slot(key, second)
        if slot >= 0:
            self.names[slot] = key
        return slot

    def describe(self, symptom: str, slot: int) -> Episode:
        system, raw = self.names[slot]
        where = peer(raw)
        name = f"the {system} server{f' at {where}' if where else ''}"
        return Episode(symptom, (system, raw), slot, name, where, 0, 0, "", "", 0.0, 0.0, 0.0, 0)

    def judge(self, second: int, slots: np.ndarray, rows: Mapping[str, np.ndarray]) -> list[Episode]:
        """Bad: it took far longer than usual to answer, gave no answer, or was down (from the start: for three polls)."""
        opened = []
        usual = self.series.baseline("poll_ns", slots, second, 1)
        bar = np.maximum(self.config.poll_stall_ns, np.maximum(self.config.stall_ratio * usual.median, 2 * usual.top))
        for i, slot in enumerate(slots.tolist()):
            row = self._worst[slot]
            end, took = int(row["t_ns"]), max(0, int(row["poll_ns"]))
            base = float(usual.median[i])
            if row["status"] == b"down":
                begun, polls = self._begun.get(slot, (end - took, 0))
                self._begun[slot] = begun, polls + 1
                reason = text(row["reason"])
                symptom = "broker_stall" if any(phrase in reason.lower() for phrase in _NO_ANSWER) else "broker_down"
                if usual.seen[i] or polls >= 2:
                    opened += self._bad(symptom, slot, second, (begun, end, base), reason)
            else:
                self._begun.pop(slot, None)
                if took > bar[i] and usual.seen[i] >= 3:
                    opened += self._bad("broker_stall", slot, second, (end - took, end, base), "")
        return opened

    def _bad(self, symptom: str, slot: int, second: int, measured: tuple[int, int, float], reason: str) -> list[Episode]:
        start, end, base = measured
        episode = self.active.get((symptom, slot))
        if episode is not None:
            self.extend(episode, second, float(end - start), end)
            return []
        episode = self.describe(symptom, slot)
        episode.metric, episode.unit, episode.start_ns, episode.end_ns, episode.base, episode.words = "poll_ns", "ns", start, end, base, reason
        self.open(episode, second, float(end - start), 1)
        return [episode]


class AcceptWatch(Watch):
    """One subject is one listening socket."""

    metrics = ("queue", "limit", "fill", "drops")

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
        queue, drops = np.zeros(len(first)), np.zeros(len(first))
        np.maximum.at(queue, group, s["queue"])
        np.maximum.at(drops, group, np.where(known(s["drops"]), s["drops"], 0))
        limit = s["limit"][first].astype(np.float64)
        fits = slots >= 0
        self.series.put(second, slots[fits], queue=queue[fits], limit=limit[fits], fill=(queue / limit)[fits], drops=drops[fits])
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
        """Bad: it was full for three seconds, or was nearly full and dropped some."""
        fill = self.series.recent("fill", slots, second, 3)
        count = self.series.recent("drops", slots, second, 3)
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
                episode.facts["drops_first"] = float(count[i, -1]) - dropped
                self.open(episode, second, queue, 3)
                opened.append(episode)
            episode.facts["limit"] = float(self.series.recent("limit", slots[i : i + 1], second, 1)[0, 0])
            episode.facts["drops"] = float(count[i, -1]) - episode.facts["drops_first"]
        return opened
