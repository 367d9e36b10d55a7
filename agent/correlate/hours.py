"""The usual activity of limiters and services at this hour of the day.

An hour is a 24th of a day of CLOCK_BOOTTIME: no step of the wall clock moves it, and a replay has the same hours. For
each hour of the last week the number of requests and the longest pause are kept. An hour was busy if it, the one before
and the one after each had ``_LEAST`` requests, without a pause of a third of an hour. So a service that begins or ends
somewhat earlier than yesterday, or with daylight saving time, is not late.

A subject is silent if it has no request for three times the longest pause of the busy days at this hour, and for
``_LEAST_S``. With random arrivals that happens to a subject with ``_LEAST`` requests an hour about once in ten years,
and to others less often. Three days must have been busy, and the same day a week before. If that is unknown, all days
must have been busy, and it must have had a request within the last hour.
"""

from __future__ import annotations

import numpy as np

from agent.correlate.answers import asked_for
from agent.correlate.episode import Episode
from agent.correlate.hours_file import Hours, Key, others, pack, unpack, without_gap
from agent.correlate.rows import OfSecond, groups, of_codes, shared
from agent.correlate.series import Series
from agent.correlate.thresholds import CorrelatorConfig
from agent.correlate.watch import Watch
from agent.correlate.words import process, text
from agent.tables import TABLES

#: Columns that a symptom of these reads.
READS = {
    "limiter_decision": ("limiter_id",),
    "limiter_rate": ("limiter_id", "seen_allowed", "seen_refused", "allowed", "refused"),
    "service_latency": ("sport", "netns", "requests", "waiting"),
    "process_event": ("kind",),
}
HOUR, _KEPT = 3600, 192
_DAYS, _WEEK = np.arange(1, 8) * 24, 6
_AROUND = np.array([-1, 0, 1])
_LEAST, _LEAST_S, _RATIO, _ALIKE = 60, 60, 3, 3
_GAP_S = 10  # a gap without any rows: the host slept, or the agent did not run
_MOST = 1 << 32  # larger numbers of requests a second are not believed
_ENDS = of_codes(TABLES["process_event"].code("kind", name) for name in ("killed", "exited", "oom_killed"))


class HourWatch(Watch):
    """One subject is one limiter of all processes of one name, or one port of a network namespace. last: the last
    second with a request.
    """

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        most = 2 * config.subjects
        self.series = Series((), most, self._has_hours)
        self.last, self.reported = np.zeros(most, np.int64), np.zeros(most, np.int64)
        self._who: dict[int, tuple[tuple[object, ...], int, int, str]] = {}  # by slot: key, pid, start tick, name
        self._ended: set[int] = set()
        self._first = np.zeros(most, np.int64)
        self._n, self._pause = np.zeros((most, _KEPT), np.float32), np.zeros((most, _KEPT), np.uint16)  # 0: not known
        self._now, self._longest = np.zeros(most), np.zeros(most, np.int64)
        self._hour = self._since = self._at = -1
        self._before: tuple[int, dict[Key, Hours]] = 0, {}

    def fill(self, second: int, rows: OfSecond) -> np.ndarray:
        if rows:
            self._pass(second)
        elif second - self._at > _GAP_S:  # after a gap, evaluating such seconds for other watches tells nothing
            return np.empty(0, np.int64)
        for key, n, row in (*_limiters(rows), *_ports(rows)):
            slot = self.series.slot(key, second)
            if slot < 0:
                continue
            if slot not in self._who or self._who[slot][0] != key:
                self._n[slot], self._pause[slot] = self._past(key)
                self._now[slot] = self._longest[slot] = 0
                self._first[slot] = self.last[slot] = second
            pause = second - max(int(self.last[slot]), self._hour * HOUR)
            self._longest[slot] = max(self._longest[slot], pause)
            self._now[slot] += n
            self.last[slot] = second
            self._who[slot] = key, int(row["pid"]), int(row["proc_start_ns"]) // 10_000_000, text(row["comm"])
            self._ended.discard(slot)
        self.series.dropped = 0  # the other watches of the same subjects count them
        self._end_of(rows["process_event"])
        return np.array(sorted(self._who), np.int64)

    def _past(self, key: Key) -> Hours:
        """What an earlier agent knew of it."""
        until, known = self._before
        return without_gap(known[key], until, self._hour) if key in known else _NOTHING

    def remember(self) -> bytes:
        """What is known of past hours, for a later agent of this boot; followed by what an earlier agent knew of
        subjects that have not been seen since.
        """
        mine = [
            (self._who[slot][0], Hours(self._n[slot], self._pause[slot]))
            for slot in self._who
            if self._pause[slot].any()
        ]
        until, known = self._before
        return pack(
            self._hour, len(self._n), [*mine, *others(known, (who[0] for who in self._who.values()), until, self._hour)]
        )

    def recall(self, kept: bytes) -> None:
        """Takes what an earlier agent remembered; call before the first second. A subject counts once it has a request
        again, since its process may have ended.
        """
        self._before = unpack(kept, _KEPT)

    def _pass(self, second: int) -> None:
        hour = second // HOUR
        if self._at < 0 or second - self._at > _GAP_S:
            for missing in range(max(self._hour, hour - _KEPT), hour):
                self._pause[:, missing % _KEPT] = 0
            self._since, self._hour = second, hour
            self._now[:] = self._longest[:] = 0
        while self._hour < hour:
            begin, end = self._hour * HOUR, (self._hour + 1) * HOUR
            whole = (np.maximum(self._first, self._since) <= begin) & (self.reported < begin)
            longest = np.maximum(self._longest, end - np.maximum(self.last, begin)).clip(1)
            self._pause[:, self._hour % _KEPT] = np.where(whole, longest, 0)
            self._n[:, self._hour % _KEPT] = self._now
            self._now[:] = self._longest[:] = 0
            self._hour += 1
        self._at = second

    def _has_hours(self, slot: int) -> bool:
        """Whether it was busy for an hour on so many days of the last week that it can be reported, or within the last
        day. Short-lived subjects do not take its slot.
        """
        days = (self._n[slot] >= _LEAST).reshape(-1, 24).any(axis=1).sum()
        return bool(days >= _ALIKE or (days and self._at - self.last[slot] < 24 * HOUR))

    def _end_of(self, events: np.ndarray) -> None:
        """Forgets subjects of ended processes, which other symptoms report."""
        gone = set(events["pid"][_ENDS[events["kind"]]].tolist())
        self._ended |= {slot for slot, (_, pid, _, _) in self._who.items() if pid in gone} if gone else set()

    def overdue(self, slots: np.ndarray, second: int) -> list[tuple[int, int, int, float]]:
        """Subjects without a request for too long: (slot, since when, longest pause of such hours, usual number of
        requests).
        """
        begun = np.maximum(self.last[slots], max(self._hour * HOUR, self._since))
        late = second + 1 - begun > _LEAST_S
        slots, begun = slots[late], begun[late]
        if not len(slots):
            return []
        hours = (self._hour - _DAYS[:, None] + _AROUND) % _KEPT
        n, pause = self._n[slots][:, hours], self._pause[slots][:, hours]
        known = (pause > 0).all(axis=2)
        busy = known & ((pause <= HOUR // _RATIO) & (n >= _LEAST)).all(axis=2)
        goes = (self.last[slots] > second - HOUR) & (busy == known).all(axis=1)
        due = (busy.sum(axis=1) >= _ALIKE) & np.where(known[:, _WEEK], busy[:, _WEEK], goes)
        longest = np.where(busy, pause[:, :, 1], 0).max(axis=1).astype(np.int64)
        due &= (second + 1 - begun > _RATIO * longest) & (self.reported[slots] <= self.last[slots])
        return [
            (int(slots[i]), int(begun[i]), int(longest[i]), float(np.median(n[i, busy[i], 1])))
            for i in np.flatnonzero(due)
            if int(slots[i]) not in self._ended and not self._replaced(int(slots[i]))
        ]

    def _replaced(self, slot: int) -> bool:
        """Whether a later limiter replaced it: one named by its address has another name after each start of its
        program. A limiter that the same process adds later does not replace it.
        """
        (what, name), *mine, _ = self._who[slot]
        return isinstance(what, str) and any(
            name == key[1] and its != mine and self._first[other] > self.last[slot]
            for other, (key, *its, _) in self._who.items()
        )

    def describe(self, symptom: str, slot: int) -> Episode:
        key, pid, tick, comm = self._who[slot]
        who = process(comm, pid if pid > 0 else None)
        limiter = isinstance(key[0], str)
        subject, metric = (f"limiter {key[0]} ({who})", "silent") if limiter else (f"{who} on port {key[1]}", "unasked")
        episode = Episode(symptom, key, slot, subject, f"{pid}/{tick}", metric=metric, unit="ns")
        episode.pid, episode.start_tick, episode.comm = pid if pid > 0 else None, tick, comm
        episode.keys = {"limiter_id": key[0]} if limiter else {"sport": key[1]}
        if isinstance(key[1], int):
            episode.facts["port"] = float(key[1])
        return episode

    def _end(self, second: int) -> None:
        """Its symptom decides how long an episode lasts."""
        for key, episode in list(self.active.items()):
            if second - episode.last_bad >= self.config.quiet_s:
                del self.active[key]


_NOTHING = Hours(np.zeros(_KEPT, np.float32), np.zeros(_KEPT, np.uint16))
_Seen = tuple[tuple[object, ...], float, np.void]


def _limiters(rows: OfSecond) -> list[_Seen]:
    decisions = rows["limiter_decision"]
    seen: list[_Seen] = []
    if len(decisions):
        first, group = shared(rows, "limiter_decision", "limiter_id", "comm")
        n = np.bincount(group)
        seen += [
            ((text(decisions[i]["limiter_id"]), text(decisions[i]["comm"])), float(n[g]), decisions[i])
            for g, i in enumerate(first)
        ]
    for row in rows["limiter_rate"]:
        reported, more = (
            sum(max(0, int(row[c])) for c in names) for names in (READS["limiter_rate"][1:3], READS["limiter_rate"][3:])
        )
        if more > 0 and row["limiter_id"] != b"others":
            seen.append(((text(row["limiter_id"]), text(row["comm"])), float(max(0, more - reported)), row))
    return seen


def _ports(rows: OfSecond) -> list[_Seen]:
    latencies = asked_for(rows["service_latency"])
    if not len(latencies):
        return []
    first, group = groups([latencies["netns"], latencies["sport"]])
    n = np.bincount(group, latencies["requests"].clip(0, _MOST))
    return [
        ((int(latencies[i]["netns"]), int(latencies[i]["sport"])), float(n[g]), latencies[i])
        for g, i in enumerate(first)
    ]
