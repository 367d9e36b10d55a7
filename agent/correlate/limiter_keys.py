"""Keys of limiters: one that is refused every time while others pass, and one whose counter no longer expires.

A key is stuck if it passed before, and then was refused each time for longer than several of its windows, though it
asked for less than the limit allows. Every limiter lets some requests of such a key pass in each window, whatever its
algorithm. A key that asks for more may be refused all of the time: a log of requests that counts the refused ones, too,
does so. A limiter may also block a key for longer than its window, as a penalty. So a key does not count if it had
asked for more than the limit just before. Nor does one that never passed (a list of blocked keys), or whose window is
not known (it may be a day). If the limit is not known, what the key asked for while it passed takes its place.

Processes are not told apart, since their limiters may share a counter. But decisions that were observed, and those that
each user reported, are: any user can report a decision of any limiter.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

import numpy as np

from agent.common.alike import most
from agent.common.fairness import Places, UpperBound
from agent.common.recent import Recent
from agent.correlate.episode import Episode
from agent.correlate.rows import OfSecond, known, shared
from agent.correlate.thresholds import SECOND, CorrelatorConfig
from agent.correlate.watch import Watch
from agent.correlate.words import process, text
from agent.tables import TABLES

_CODES = {name: TABLES["limiter_decision"].code("result", name) for name in ("allowed", "refused", "delayed")}
_REPORTED = tuple(TABLES["limiter_decision"].code("source", name) for name in ("socket", "otlp"))
#: What has one identity: the key of a limiter, as it was observed, or as a user reported it.
_ID = ("limiter_id", "key", "source", "reporter_uid")

#: Columns that the symptom reads.
READS = {
    "limiter_decision": (
        *_ID,
        *("result", "cost", "limit_per_s", "burst", "window_ns", "sample_rate", "unexpired_ns"),
    )
}
#: How long it must have been refused: a multiple of its window, and a minimum; and how often.
_WINDOWS, _LEAST_S, _LEAST = 5, 30, 10
#: Shares of the limit, and of what it usually asked for, up to which it asks for no more than it may.
_WITHIN, _USUAL = 0.9, 1.2
#: What a key without a known limit may ask for at once, as a multiple of what is usual.
_BURST = 2.0
_PARTS = 8  # of a window
_NEW_PER_S = 512  # keys of a user that may be new in a second
_LIMITERS, _USERS = 256, 64
_MOST_ACTIVE, _A_USERS_ACTIVE = 8, 16  # stuck keys of a limiter, and that one user reports
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "findings",
        "keys of limiters checked for `key_stuck`",
        CorrelatorConfig.keys,
        "further keys are not checked while these are in use",
        "-",
        shared=True,
    ),
)
_Id = tuple[bytes, bytes, int, int]


@dataclass(slots=True)
class KeyHistory:
    """One key of a limiter. window_s: at least 1. limit: units in a window, NaN if unknown. Times are seconds of
    CLOCK_BOOTTIME, or ns where their names say so.

    first, last: seconds with its first and its last request. allowed: decisions; asked: units, while it passed.
    refused_ns: since when it has only been refused, 0: it passes; refused: decisions; refused_asked: units; others:
    how many decisions of its limiter were allowed before. over_before: it had asked for more than it may, so that it
    may be blocked for a time. counted_ns: its last decision that was refused or had it; unexpired_ns: that column of
    its last decision, 0: null.
    """

    window_s: float
    limit: float
    first: int
    last: int = 0
    allowed: float = 0.0
    asked: float = 0.0
    refused_ns: int = 0
    refused_end_ns: int = 0
    refused: int = 0
    refused_asked: float = 0.0
    others: float = 0.0
    over_before: bool = False
    counted_ns: int = 0
    unexpired_ns: int = 0
    pid: int = -1
    tick: int = 0
    comm: bytes = b""
    parts: list[float] = field(default_factory=lambda: [0.0] * (_PARTS + 1))
    part: int = 0

    def ask(self, second: int, units: float) -> None:
        at = int(second // max(1.0, self.window_s / _PARTS))
        for stale in range(max(self.part + 1, at - _PARTS), at + 1):
            self.parts[stale % (_PARTS + 1)] = 0.0
        self.part, self.last = at, second
        self.parts[at % (_PARTS + 1)] += units

    @property
    def usual_per_s(self) -> float:
        """What it asked for while it passed."""
        since = self.refused_ns // SECOND if self.refused_ns else self.last
        return self.asked / max(1, since - self.first)

    @property
    def asked_per_s(self) -> float:
        """What it has asked for since it is refused."""
        return self.refused_asked / max(1.0, (self.refused_end_ns - self.refused_ns) / SECOND)

    def beyond(self) -> bool:
        """Whether it asked for more than it may within the last window."""
        usual_units = _BURST * self.usual_per_s * self.window_s + 3
        return sum(self.parts) > (usual_units if math.isnan(self.limit) else self.limit)

    @property
    def stuck(self) -> bool:
        lasted_s = (self.refused_end_ns - self.refused_ns) / SECOND
        if not self.refused_ns or self.over_before or self.refused < _LEAST or self.allowed < _LEAST:
            return False
        if lasted_s < max(_WINDOWS * self.window_s, _LEAST_S):
            return False
        if not math.isnan(self.limit):
            return self.asked_per_s * self.window_s <= _WITHIN * self.limit
        watched_s = self.refused_ns // SECOND - self.first
        return watched_s >= _WINDOWS * self.window_s and self.asked_per_s <= _USUAL * self.usual_per_s

    @property
    def kept_s(self) -> float:
        """How long after its last request it may still be in its present state."""
        return max(2 * self.window_s, _LEAST_S)


class KeyWatch(Watch):
    """One subject is one key of a limiter. stuck: those that are, by limiter and key."""

    metrics = ("refused",)

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self._passing: OrderedDict[_Id, KeyHistory] = OrderedDict()
        self._refused: OrderedDict[_Id, KeyHistory] = OrderedDict()
        self._passing_places, self._refused_places = Places(config.keys // 2), Places(config.keys // 2)
        #: By user and limiter: decisions, and the last second with one.
        self._allowed = Recent[int, Recent[bytes, tuple[float, int]]](_USERS)
        self._of: dict[int, _Id] = {}
        self.stuck: dict[_Id, KeyHistory] = {}

    def fill(self, second: int, rows: OfSecond) -> np.ndarray:
        decisions = rows["limiter_decision"]
        if (decisions["key"] != b"").any():
            self._take(second, decisions, *shared(rows, "limiter_decision", *_ID))
        self.stuck = {
            of: one
            for of, one in self._refused.items()
            if second - one.last <= one.kept_s
            and (one.unexpired_ns or (one.stuck and self._others_pass(of, one, second)))
        }
        return np.zeros(1 if self.stuck else 0, np.int64)

    def _others_pass(self, of: _Id, one: KeyHistory, second: int) -> bool:
        n, last = self._passed(of)
        return n - one.others >= _LEAST and second - last <= one.kept_s

    def _passed(self, of: _Id) -> tuple[float, int]:
        its = self._allowed.get(_user(of))
        return (0.0, 0) if its is None else its.get(of[0], (0.0, 0))

    def _take(self, second: int, decisions: np.ndarray, first: np.ndarray, group: np.ndarray) -> None:
        result = decisions["result"]
        share = np.where((decisions["sample_rate"] > 0) & (decisions["sample_rate"] < 1), decisions["sample_rate"], 1.0)
        units = np.where(np.isnan(decisions["cost"]), 1.0, decisions["cost"]) / share
        last = np.zeros(len(first), np.int64)
        last[group] = np.arange(len(group))
        passes = np.isin(result, (_CODES["allowed"], _CODES["delayed"]))
        n = len(first)
        allowed, refused = np.bincount(group, passes, n), np.bincount(group, result == _CODES["refused"], n)
        asked = np.bincount(group, units * (passes | (result == _CODES["refused"])), n)
        ages = np.where(known(decisions["unexpired_ns"]), decisions["unexpired_ns"], 0)
        unexpired = most(np.zeros(n, np.int64), group, ages)
        ids = list(zip(*(decisions[name][first].tolist() for name in _ID), strict=True))
        self._count(second, ids, allowed.tolist())
        new = Counter[int]()
        values = zip(
            ids,
            *(each.tolist() for each in (allowed, refused, asked, unexpired, *_windows(decisions[last]), first, last)),
            strict=True,
        )
        for of, n_allowed, n_refused, n_asked, age_ns, window_s, limit, at, end in values:
            if not of[1]:
                continue
            one = self._refused.get(of) or self._passing.get(of)
            if one is None:
                if not age_ns and (n_refused or not n_allowed):  # it may be blocked on purpose
                    continue
                if not window_s or new[_user(of)] >= _NEW_PER_S:
                    continue
                new[_user(of)] += 1
                one = KeyHistory(window_s, limit, second)
            one.window_s, one.limit = max(one.window_s, window_s), limit if window_s else one.limit
            one.ask(second, n_asked)
            one.unexpired_ns = age_ns
            if n_allowed:
                one.refused_ns, one.refused, one.refused_asked, one.over_before = 0, 0, 0.0, False
                one.allowed, one.asked = one.allowed + n_allowed, one.asked + n_asked
            elif n_refused:
                self._refuse(one, of, int(n_refused), n_asked, decisions[at], decisions[end])
            if n_refused or age_ns:
                row = decisions[end]
                one.counted_ns, one.pid, one.comm = int(row["t_ns"]), int(row["pid"]), row["comm"]
                one.tick = int(row["proc_start_ns"]) // 10_000_000
            self._keep(of, one, second)

    def _refuse(self, one: KeyHistory, of: _Id, n: int, asked: float, first: np.void, last: np.void) -> None:
        if not one.refused_ns:
            one.refused_ns, one.over_before = int(first["t_ns"]), one.beyond()
            one.others = self._passed(of)[0]
        one.refused_end_ns = int(last["t_ns"])
        one.refused, one.refused_asked = one.refused + n, one.refused_asked + asked

    def _count(self, second: int, ids: list[_Id], allowed: list[float]) -> None:
        for of, n in zip(ids, allowed, strict=True):
            if n:
                user, limiter = _user(of), of[0]
                its = self._allowed[user] = self._allowed.get(user) or Recent[bytes, tuple[float, int]](_LIMITERS)
                its[limiter] = its.get(limiter, (0.0, 0))[0] + n, second

    def _keep(self, of: _Id, one: KeyHistory, second: int) -> None:
        both = (self._passing, self._passing_places), (self._refused, self._refused_places)
        (there, its_places), (here, places) = both if one.refused_ns or one.unexpired_ns else both[::-1]
        user = _user(of)
        if there.pop(of, None) is not None:
            its_places.give_back(user)
        if of not in here:
            if places.refusal(user) and here:
                oldest, its = next(iter(here.items()))
                if second - its.last > its.kept_s:
                    del here[oldest]
                    places.give_back(_user(oldest))
                else:
                    here.move_to_end(oldest)  # it may be kept for days: the next time, another one is looked at
            if places.refusal(user):
                return
            places.take(user)
        here[of] = one
        here.move_to_end(of)

    def episodes(self, second: int) -> list[tuple[_Id, KeyHistory, int]]:
        """The stuck keys with their slots: those that were before, and new ones as long as few of their limiter are,
        and few that one user reports.
        """
        active = {slot: self._of.get(slot) for _, slot in self.active}
        n = Counter[object]()
        for of in active.values():
            if of is not None:
                n.update((_user(of), (_user(of), of[0])))
        found = []
        for of, one in self.stuck.items():
            if of not in active.values():
                user, limiter = _user(of), (_user(of), of[0])
                if n[limiter] >= _MOST_ACTIVE or (user and n[user] >= _A_USERS_ACTIVE):
                    continue
                n.update((user, limiter))
            slot = self.series.slot(of, second)
            if slot >= 0:
                self._of[slot] = of
                found.append((of, one, slot))
        return found

    def describe(self, symptom: str, slot: int) -> Episode:
        of = limiter, key, _, uid = self._of[slot]
        one = self.stuck[of]
        name, pid = text(limiter), one.pid if one.pid > 0 else None
        subject = f"key {text(key)} of limiter {name} ({process(text(one.comm), pid)})"
        episode = Episode(symptom, (name,), slot, subject, f"limiter {name}")
        episode.keys = {"limiter_id": name, "key": text(key)} | ({"reporter_uid": uid} if uid >= 0 else {})
        episode.pid, episode.start_tick, episode.comm = pid, one.tick, text(one.comm)
        return episode


def _user(of: _Id) -> int:
    """Whose places it takes: root's if it was observed, -1 if its reporter is unknown."""
    return max(of[3], -1) if of[2] in _REPORTED else 0


def _windows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(window in s, 0 if unknown; limit in it, NaN if unknown) of decisions. Of a bucket: the time to fill it."""
    per_s, burst, window_s = rows["limit_per_s"], rows["burst"], rows["window_ns"] / SECOND
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        bucket = (window_s <= 0) & (per_s > 0) & (per_s < math.inf) & (burst > 0)
        window_s = np.where(bucket, burst / per_s, window_s)
        is_known = window_s > 0
        window_s = np.where(is_known, np.maximum(window_s, 1.0), 0.0)
        limit = np.where(np.isnan(per_s), burst, per_s * window_s)
    return window_s, np.where(is_known, limit, np.nan)
