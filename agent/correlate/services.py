"""Failing services: limiters by their decisions, brokers by the error replies that they report, any server by the
status of its answers.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from agent.common.copies import only
from agent.correlate.answered import error_name, faults
from agent.correlate.brokers import POLLER
from agent.correlate.codes import Codes
from agent.correlate.episode import Episode
from agent.correlate.rows import OfSecond, columns_of, groups, known, shared, union
from agent.correlate.series import SECONDS, Series
from agent.correlate.thresholds import SECOND, CorrelatorConfig
from agent.correlate.view import place
from agent.correlate.watch import Watch
from agent.correlate.words import peer, process, text
from agent.tables import TABLES

#: Columns that a symptom of these reads.
READS = {
    "limiter_decision": ("limiter_id", "result"),
    "queue_lag": ("system", "status", "peer", "errors", "clients_refused"),
    "service_answer": ("netns", "peer", "comm", "protocol", "code", "count"),
}
_MOST = 1 << 32  # larger numbers of answers in an interval are not believed
_ERROR = TABLES["limiter_decision"].code("result", "error")
#: Errors that are the broker's own, not those of a client without a password.
_STATES = frozenset(("OOM", "READONLY", "MISCONF", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "BUSY"))
#: States in which a broker lets its publishers wait, without an error.
_ALARMS = frozenset(("MEMORY_ALARM", "DISK_ALARM"))


class ServiceWatch(Watch):
    """One subject is a limiter of a process, a broker, or an ip:port with inspected answers. first_ns: of the second's
    failures, by slot.
    """

    metrics = ("n", "errors", "replies", "alarms")

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self.series = Series(self.metrics, 3 * config.subjects)  # limiters, brokers, and servers
        self.first_ns: dict[int, int] = {}
        self._names: dict[int, tuple[tuple[object, ...], str]] = {}
        self._refused: dict[tuple[str, bytes], int] = {}
        self.codes = Codes()
        self._answering: dict[tuple[int, bytes], int] = {}  # when each was seen last; the least recent first
        self._unwatched = 0

    def fill(self, second: int, rows: OfSecond) -> np.ndarray:
        self.first_ns = {}
        slots = union(
            self._decisions(second, rows),
            self._brokers(second, rows["queue_lag"]),
            self._answers(second, rows["service_answer"]),
        )
        self.series.dropped = self._unwatched  # the other subjects are counted by watches of other symptoms
        return slots

    def _decisions(self, second: int, rows: OfSecond) -> np.ndarray:
        decisions = rows["limiter_decision"]
        if not len(decisions):
            return np.empty(0, np.int64)
        first, group = shared(rows, "limiter_decision", "limiter_id", "pid", "proc_start_ns")
        who = columns_of(decisions, first, "limiter_id", "pid", "proc_start_ns", "comm")
        slots = np.array([self._limiter(second, *its) for its in who], np.int64)
        failed = decisions["result"] == _ERROR
        n, errors = np.bincount(group), np.bincount(group, failed)
        for g in np.flatnonzero(errors):
            self.first_ns[int(slots[g])] = int(decisions["t_ns"][failed & (group == g)].min())
        return self.put(second, slots, n=n, errors=errors)

    def _limiter(self, second: int, limiter: bytes, pid: int, start_ns: int, comm: bytes) -> int:
        key = text(limiter), pid if pid > 0 else None, start_ns // 10_000_000
        slot = self.series.slot(key, second)
        if slot >= 0:
            self._names[slot] = key, text(comm)
        return slot

    def _brokers(self, second: int, polls: np.ndarray) -> np.ndarray:
        reported: dict[int, float] = {}
        alarms: dict[int, int] = {}
        polls = only(polls, polls["status"] != b"down")
        if not len(polls):
            return np.empty(0, np.int64)
        first = groups([polls["t_ns"], polls["system"], polls["peer"]])[0]  # all rows of a poll have the same values
        for t_ns, system, raw, errors, refused in columns_of(
            polls, first, "t_ns", "system", "peer", "errors", "clients_refused"
        ):
            key = text(system), raw
            slot = self.series.slot(key, second)
            if slot < 0:
                continue
            self._names[slot] = key, ""
            n = _replies(text(errors)) + self._turned_away(key, refused)
            reported[slot] = reported.get(slot, 0.0) + n
            alarms[slot] = max(alarms.get(slot, 0), len(_ALARMS & _kinds(text(errors)).keys()))
            if (n or alarms[slot]) and slot not in self.first_ns:
                self.first_ns[slot] = t_ns
        slots = np.array(sorted(reported), np.int64)
        its = (np.array([values[slot] for slot in slots.tolist()], np.float64) for values in (reported, alarms))
        self.series.put(second, slots, **dict(zip(("replies", "alarms"), its, strict=True)))
        return slots

    def _answers(self, second: int, answers: np.ndarray) -> np.ndarray:
        answers = answers[(answers["count"] > 0) & (answers["count"] < _MOST) & (answers["comm"] != POLLER)]
        if not len(answers):
            return np.empty(0, np.int64)
        first, group = groups([answers["netns"], answers["peer"]])
        failed = faults(answers)
        n, bad = np.bincount(group, answers["count"]), np.bincount(group, answers["count"] * failed)
        slots = np.array(
            [self._server((int(answers["netns"][i]), answers["peer"][i].tobytes()), second) for i in first]
        )
        counts: dict[int, Counter[str]] = {}
        begun: dict[int, int] = {}
        its = (answers[name][failed].tolist() for name in ("protocol", "code", "count", "t_ns"))
        for slot, protocol, code, times, t_ns in zip(slots[group[failed]].tolist(), *its, strict=True):
            if slot >= 0:
                counts.setdefault(slot, Counter())[error_name(text(protocol), text(code))] += times
                begun[slot] = min(begun.get(slot, t_ns), t_ns)
        for slot in sorted(counts):
            self.codes.note(slot, second, begun[slot] - SECOND, counts[slot])  # rows come at the end of an interval
        return self.put(second, slots, n=n, errors=bad)

    def _server(self, key: tuple[int, bytes], second: int) -> int:
        """Limits the servers, so that a program with many servers leaves room for limiters and brokers."""
        if key not in self._answering and len(self._answering) >= self.config.subjects:
            oldest = next(iter(self._answering))
            if self._answering[oldest] > second - SECONDS:
                self._unwatched += 1
                return -1
            del self._answering[oldest]
        slot = self.series.slot(key, second)
        if slot < 0:
            self._unwatched += 1
            return -1
        if self._names.get(slot, ((), ""))[0] != key:
            self.codes.forget(slot)
        self._answering.pop(key, None)
        self._answering[key], self._names[slot] = second, (key, "")
        return slot

    def _turned_away(self, key: tuple[str, bytes], total: int) -> int:
        if not known(np.asarray(total)):
            return 0
        before = self._refused.get(key, total)
        self._refused[key] = total
        return max(0, total - before)

    def settle(self, episode: Episode, second: int, lasted: int) -> None:
        """n, errors, replies, alarms: totals during the episode."""
        for metric in self.metrics:
            seen = self.series.recent(metric, np.array([episode.slot]), second, lasted)[0]
            if not np.isnan(seen).all():
                episode.facts[metric] = float(np.nansum(seen))

    def describe(self, symptom: str, slot: int) -> Episode:
        key, comm = self._names[slot]
        if len(key) == 2:
            system, raw = key
            assert isinstance(raw, bytes)
            where = peer(raw)
            if isinstance(system, int):
                scope = place(where, raw, system)
                name = f"the server at {where}"
                return Episode(symptom, key, slot, name, scope, keys={"peer": raw})
            name, keys = f"the {system} server{f' at {where}' if where else ''}", {"system": system, "peer": raw}
            return Episode(symptom, key, slot, name, where, keys=keys)
        limiter, pid, tick = key
        assert isinstance(tick, int)
        assert pid is None or isinstance(pid, int)
        subject, scope = f"limiter {limiter} ({process(comm, pid)})", f"{-1 if pid is None else pid}/{tick}"
        episode = Episode(symptom, key, slot, subject, scope)
        episode.pid, episode.start_tick, episode.comm, episode.keys = pid, tick, comm, {"limiter_id": limiter}
        return episode


def _replies(text: str) -> int:
    """The number of error replies that are the broker's own errors."""
    return sum(n for kind, n in _kinds(text).items() if kind in _STATES)


def _kinds(text: str) -> dict[str, int]:
    """``queue_lag.errors``: counts by kind."""
    parts = (part.partition(" ") for part in text.split(", "))
    return {kind: int(n) for kind, _, n in parts if n.isdigit()}
