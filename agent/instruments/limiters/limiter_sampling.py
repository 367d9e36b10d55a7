"""Sampling of hot limiters: when to attach the probes, and the estimate of all decisions from a window. Pure except for
``gone``.

Every hit of a probe stops its thread for some microseconds. Up to ``HITS_PER_S`` hits a second, a program is probed
permanently and each decision is a row. Above that its probes are attached for a short window in each second.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from math import ceil, floor, sqrt

import numpy as np

from agent.batch import Batch
from agent.columns import NULL_I64
from agent.common.alive import gone
from agent.common.copies import only
from agent.common.fairness import UpperBound
from agent.instruments.limiters.decisions import Called
from agent.kernel.wire_structs import decode
from agent.limiters.catalogue import seen
from agent.limiters.reading import ALLOWED, DELAYED, UNKNOWN
from agent.limiters.settings import HITS_PER_S

#: Approximate hits in a window: half of a program's budget per second.
_WINDOW_HITS = 4_000
_PERIOD_NS, _SHORTEST_NS, _LONGEST_NS = 1_000_000_000, 10_000_000, 400_000_000
#: The largest part of a program's time with probes: attaching and detaching takes tens of ms, in which they hit.
_MOST_TIME = 0.06
#: Leave sampling after this many windows in a row below half of the budget.
_CALM_WINDOWS = 3
#: Upper bound of the thread time of a decision's two hits, for the upper end of intervals; the share of a thread's time
#: above which the probes limit the program's speed, so that no upper end is known.
_DECISION_NS, _SLOWED = 20_000, 0.5
#: Windows for the estimate of their variation; limiters per program with rows of their own.
_HISTORY, _LIMITERS = 16, 256
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "limiters",
        "probe hits of one program and limiter library per second",
        HITS_PER_S,
        "the program is [sampled](limiters.md#hot-limiters)",
        "`probe_status` row `limiter:NAME`, `sample_rate`, `limiter_rate`",
    ),
    UpperBound(
        "limiters",
        "limiters of a sampled program",
        _LIMITERS,
        "the others are one row, `others`",
        "`limiter_rate.limiter_id`",
    ),
)


@dataclass
class Schedule:
    """When a sampled program has its probes. budget: hits per second."""

    budget: int = HITS_PER_S
    window_ns: int = _SHORTEST_NS
    _calm: int = 0
    _second_ns: int = 0
    _rest_until_ns: int = 0

    @property
    def every(self) -> int:
        """A window is 1/k of the time."""
        return max(2, round(_PERIOD_NS / self.window_ns))

    def begin(self, now_ns: int) -> None:
        """Sampling begins now."""
        self.window_ns, self._calm, self._second_ns, self._rest_until_ns = _SHORTEST_NS, 0, now_ns, now_ns

    def calm(self, hits: int, open_ns: int) -> bool:
        """At the end of a window with so many hits: whether to leave sampling."""
        per_s = hits / max(open_ns, 1) * 1e9
        self._calm = self._calm + 1 if per_s < self.budget / 2 else 0
        self.window_ns = round(min(max(_WINDOW_HITS * 1e9 / max(per_s, 1), _SHORTEST_NS), _LONGEST_NS))
        self.window_ns = min(self.window_ns, 2 * open_ns)
        return self._calm >= _CALM_WINDOWS

    def closed(self, asked_ns: int, gone_ns: int, hits: int) -> None:
        """Notes when its probes were requested and removed, and how often they were hit."""
        lost_ns = min(gone_ns - asked_ns, hits * _DECISION_NS // 2)
        self._rest_until_ns = asked_ns + round(lost_ns / _MOST_TIME)

    def next_ns(self, now_ns: int) -> int:
        """When the next window begins: at random within its second, so that regular bursts are not always missed."""
        self._second_ns += _PERIOD_NS * max(1, -(-(now_ns - self._second_ns - _PERIOD_NS) // _PERIOD_NS))
        return max(
            now_ns, self._rest_until_ns, self._second_ns + round(random.random() * (_PERIOD_NS - self.window_ns))
        )


@dataclass
class _Window:
    """Counts of a limiter in watched_ns: admitted and not. slowed: the share of its threads' time that the
    probes took.
    """

    counts: tuple[int, int] = (0, 0)
    watched_ns: int = 1
    slowed: float = 0.0

    def per_ns(self, at: int) -> float:
        return self.counts[at] / self.watched_ns


@dataclass
class _Limiter:
    """record: one of its decisions."""

    record: np.ndarray
    windows: deque[_Window] = field(default_factory=lambda: deque(maxlen=_HISTORY))

    @property
    def start_ns(self) -> int:
        return int(self.record["proc"]["proc_start_ns"][0])


class Rates:
    """Rows of limiter_rate of one binary and library. ``covered_ns``: rows exist up to then."""

    def __init__(self) -> None:
        self.covered_ns = 0
        self._limiters: dict[tuple[int, bytes], _Limiter] = {}

    def begin(self, now_ns: int) -> None:
        """Sampling begins now, with the first window."""
        self.covered_ns = now_ns
        self._limiters.clear()

    def window(self, records: np.ndarray, since_ns: int, until_ns: int, called: Called) -> list[Batch]:
        """Rows up to the end of a window. records: its ``struct limiter_decision``. called: the limiters' ids."""
        records = only(records, records["woke"] == 0)
        watched_ns = max(until_ns - since_ns, 1)
        now: dict[tuple[int, bytes], _Window] = {}
        ids, through, pids = called(records), _let_through(records), records["proc"]["pid"]
        for pid in np.unique(pids).tolist():
            slowed = _slowed(records[pids == pid], watched_ns)
            for name in np.unique(ids[pids == pid]).tolist():
                which = np.flatnonzero((pids == pid) & (ids == name))
                key = (pid, name)
                if key not in self._limiters and len(self._limiters) >= _LIMITERS:
                    key = (pid, b"others")
                allowed = int(np.count_nonzero(through[which]))
                before = now.get(key, _Window()).counts
                counts = before[0] + allowed, before[1] + len(which) - allowed
                now[key] = _Window(counts, watched_ns, slowed)
                self._limiters.setdefault(key, _Limiter(records[which[:1]])).record = records[which[-1:]]
        rows = []
        for key, one in list(self._limiters.items()):
            one.windows.append(now.get(key, _Window((0, 0), watched_ns)))
            rows.append(self._row(key, one, until_ns))
            quiet = not any(sum(each.counts) for each in one.windows)
            if quiet or (key not in now and gone(key[0], one.start_ns)):
                del self._limiters[key]
        self.covered_ns = until_ns
        return _batch(rows)

    def ended(self, until_ns: int) -> list[Batch]:
        """Rows up to the end of its last process."""
        rows = []
        for key, one in self._limiters.items():
            one.windows.append(_Window())
            rows.append(self._row(key, one, until_ns, watched_ns=0))
        self._limiters.clear()
        self.covered_ns = until_ns
        return _batch(rows)

    def _row(self, key: tuple[int, bytes], one: _Limiter, until_ns: int, watched_ns: int | None = None) -> np.ndarray:
        """The observed counts, and for the rest of the interval the mean of this window's and the last window's rates.
        The confidence interval covers both rates, chance, and the variation of windows; it is wider upwards if the
        probes slowed the program down.
        """
        now = one.windows[-1]
        first = len(one.windows) == 1
        before = _Window() if first else one.windows[-2]
        begun_ns = max(self.covered_ns, one.start_ns) if first else self.covered_ns
        watched_ns = now.watched_ns if watched_ns is None else watched_ns
        rest_ns = max(until_ns - begun_ns - watched_ns, 0)
        row = decode(one.record, "limiter_rate").rows
        row["limiter_id"], row["library"] = key[1], list(seen())[int(one.record["library"][0])].encode()[:48]
        row["t_ns"], row["tid"] = until_ns, NULL_I64
        row["interval_ns"], row["watched_ns"] = rest_ns + watched_ns, watched_ns
        slowed = max(now.slowed, before.slowed)
        for at, name in enumerate(("allowed", "refused")):
            n, rates = now.counts[at], sorted((before.per_ns(at), now.per_ns(at)))
            wide = _differ(one.windows, at) * rest_ns
            row[f"seen_{name}"], row[name] = n, round(n + sum(rates) / 2 * rest_ns)
            row[f"{name}_low"] = max(n, floor(n + rates[0] * rest_ns - wide))
            most = n + (rates[1] * rest_ns + wide) / (1 - min(slowed, _SLOWED))
            if first and at == 0 and rest_ns:
                most += _burst(one.record)  # a burst before the window
            row[f"{name}_high"] = NULL_I64 if slowed > _SLOWED and rest_ns else ceil(most)
        return row


def _differ(windows: deque[_Window], at: int) -> float:
    """Half of a 95 % interval of a rate (1/ns) from one window: the variation from window to window, and at least that
    of chance. Few windows give a wide interval.
    """
    each = np.array([one.per_ns(at) for one in windows])
    lengths = np.array([one.watched_ns for one in windows], float)
    chance = (sum(one.counts[at] for one in windows) + 1) / lengths.sum() / lengths.mean()
    differ = float((np.diff(each) ** 2).mean() / 2) if len(each) > 1 else 0.0
    return (2 + 8 / len(each)) * sqrt(max(chance, differ))


def _slowed(records: np.ndarray, watched_ns: int) -> float:
    """The share of a thread's or goroutine's time that probes took, averaged over decisions. records: of
    one process.
    """
    loads = []
    for ids in (records["proc"]["tid"], records["goroutine"]):
        counts = np.unique(ids, return_counts=True)[1].astype(float)
        if ids[0] != UNKNOWN:  # threads of C have no goroutine
            loads.append(float((counts**2).sum() / counts.sum()) * _DECISION_NS / watched_ns)
    return max(loads)


def _read(records: np.ndarray) -> dict[str, np.ndarray]:
    return list(seen().values())[int(records["library"][0])].read(records)


def _let_through(records: np.ndarray) -> np.ndarray:
    return np.isin(_read(records)["result"], (ALLOWED, DELAYED)) if len(records) else np.zeros(0, np.bool_)


def _burst(record: np.ndarray) -> float:
    burst = _read(record).get("burst")
    return 0.0 if burst is None else float(np.nan_to_num(burst[0]))


def _batch(rows: list[np.ndarray]) -> list[Batch]:
    return [Batch("limiter_rate", np.concatenate(rows))] if rows else []
