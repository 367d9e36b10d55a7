"""Gauges of limiters over the last seconds: decision rate, share of refusals, use of the limit, and the cost of
observation.

Only for the most active limiters. Members and keys are counted by the bits of their hashes (linear counting), so that a
limiter takes 20 kB for any number of them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from agent.batch import Batch
from agent.columns import NULL_I64
from agent.common.fairness import UpperBound
from agent.tables import TABLES
from agent.tables.limiters import WATCHED_NS
from exporters.aggregate import MetricStore
from exporters.fold import Attributes

#: Limiters at a time; one without a decision for this long is replaced.
MOST, _FORGOTTEN_NS = 256, 300 * 10**9
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "limiters",
        "limiters with metrics of rate, refusals and use",
        MOST,
        "the others have no such metrics",
        "`loss` (`limiter_use limiter_limit`)",
    ),
)
EVERY_NS = 10 * 10**9
_WAITING_BYTES = 1 << 20
_BITS = 4096
_SAME = ("limiter_id", "comm", "library")
_TABLE = TABLES["limiter_decision"]
_ADMITTED = tuple(_TABLE.code("result", name) for name in ("allowed", "delayed"))
_UPROBE = _TABLE.code("source", "uprobe")
_FAILED = tuple(_TABLE.code("result", name) for name in ("refused", "error"))


@dataclass
class _Used:
    """One limiter's data since the gauges were last set. bits: of members and keys, by hash. limits: the last one of
    each, units per second, NaN if unknown or unlimited. before: its decisions in the interval before. joined: limiters
    that ask the same members at other places.
    """

    attributes: Attributes
    seen_ns: int = 0
    decisions: float = 0.0
    before: float = 0.0
    judged: float = 0.0
    failed: float = 0.0
    units: float = 0.0
    probed: float = 0.0
    bits: np.ndarray = field(default_factory=lambda: np.zeros(_BITS, np.bool_))
    limits: np.ndarray = field(default_factory=lambda: np.full(_BITS, np.nan, np.float32))
    joined: set[int] = field(default_factory=set)

    def apart(self) -> float:
        """The number of members and keys with decisions; NaN if there were too many."""
        free = _BITS - int(self.bits.sum())
        return max(round(-_BITS * math.log(free / _BITS)), 1) if free > _BITS // 16 else math.nan

    def limit(self) -> float:
        """The sum of all limits; NaN if one is unknown."""
        return self.apart() * float(self.limits[self.bits].mean(dtype=np.float64)) if self.bits.any() else math.nan

    def with_places(self, others: Iterable[_Used]) -> _Used:
        """The data of its members at all places where they are asked."""
        total = replace(self, bits=self.bits.copy(), limits=self.limits.copy())
        for one in others:
            total.judged, total.failed, total.units = (
                getattr(total, name) + getattr(one, name) for name in ("judged", "failed", "units")
            )
            total.limits = np.where(one.bits & ~total.bits, one.limits, total.limits)
            total.bits |= one.bits
        return total


def _known_members(rows: np.ndarray) -> np.ndarray:
    """pid, member and key of each row. pid: -1 where the member is not known, since processes may share the limiter."""
    out = np.zeros(len(rows), [("pid", np.int64), ("member", np.int64), ("key", rows["key"].dtype)])
    out["member"], out["key"] = rows["member"], rows["key"]
    out["pid"] = np.where(rows["member"] == NULL_I64, -1, rows["pid"])
    return out


class LimiterUse:
    """Implements ``agent.contracts.Sink``; sets its gauges in ``metrics``."""

    name = "limiter_use"

    def __init__(self, metrics: MetricStore) -> None:
        self._metrics = metrics
        self._seed = np.uint64(int.from_bytes(os.urandom(8), "little") | 1)
        self._waiting: list[np.ndarray] = []
        self._bytes = 0
        self._used: dict[int, _Used] = {}
        self._set_ns = 0
        self.left_out = 0

    def offer(self, batch: Batch) -> None:
        """Takes decisions; with any batch, sets the gauges when they are due."""
        if not len(batch.rows):
            return
        now_ns = int(batch.rows["t_ns"][-1])
        if batch.table == _TABLE.name:
            self._waiting.append(batch.rows)
            self._bytes += batch.rows.nbytes
            if self._bytes > _WAITING_BYTES:
                self._fold()
        self._set_ns = self._set_ns or int(batch.rows["t_ns"][0])
        if now_ns - self._set_ns >= EVERY_NS:
            self._fold()
            self._set((now_ns - self._set_ns) / 1e9, now_ns)
            self._set_ns = now_ns

    def losses(self) -> dict[str, int]:
        """``limiter_limit``: decisions of limiters beyond ``MOST``, which have no gauge."""
        return {"limiter_limit": self.left_out}

    def close(self) -> None:
        """Nothing to release."""

    def _fold(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if not waiting:
            return
        rows = np.concatenate(waiting) if len(waiting) > 1 else waiting[0]
        ids, first, group = np.unique(self._mixed(rows, _SAME), return_index=True, return_inverse=True)
        asked = _known_members(rows)
        member = self._mixed(asked, ("pid", "member", "key"))
        weights = {
            "decisions": np.ones(len(rows)),
            "probed": (rows["source"] == _UPROBE).astype(np.float64),
            "judged": (rows["result"] >= 0).astype(np.float64),
            "failed": np.isin(rows["result"], _FAILED).astype(np.float64),
            "units": np.where(
                np.isin(rows["result"], _ADMITTED), np.where(np.isnan(rows["cost"]), 1.0, rows["cost"]), 0.0
            ),
        }
        sums = {name: np.bincount(group, given, len(ids)) for name, given in weights.items()}
        for at in np.argsort(-sums["decisions"]).tolist():
            one = self._of(int(ids[at]), rows[first[at]], float(sums["decisions"][at]))
            if one is None:
                self.left_out += int(sums["decisions"][at])
                continue
            of_limiter = group == at
            for name, values in sums.items():
                setattr(one, name, getattr(one, name) + float(values[at]))
            one.seen_ns = max(one.seen_ns, int(rows["t_ns"][np.flatnonzero(of_limiter)[-1]]))
            place = (member[of_limiter] % np.uint64(_BITS)).astype(np.int64)
            one.bits[place] = True
            one.limits[place] = np.where(rows["unlimited"][of_limiter] == 1, np.nan, rows["limit_per_s"][of_limiter])
        self._join(asked, ids[group])

    def _join(self, asked: np.ndarray, limiters: np.ndarray) -> None:
        """Joins the limiters that have members in common. limiters: of each row, by number."""
        known = asked["pid"] >= 0
        if not known.any():
            return
        pairs = np.unique(np.stack([self._mixed(asked[known], ("pid", "member")), limiters[known]]), axis=1)
        for at in np.flatnonzero(pairs[0, 1:] == pairs[0, :-1]):
            one, other = (int(pairs[1, i]) for i in (at, at + 1))
            if one in self._used and other in self._used:
                self._used[one].joined.add(other)
                self._used[other].joined.add(one)

    def _places(self, number: int) -> set[int]:
        """The numbers of all limiters joined with it, directly or not; its own is not among them."""
        found, waiting = {number}, [number]
        while waiting:
            new = {other for other in self._used[waiting.pop()].joined if other in self._used} - found
            found |= new
            waiting += new
        return found - {number}

    def _of(self, number: int, row: np.void, decisions: float) -> _Used | None:
        one = self._used.get(number)
        if one is None and len(self._used) >= MOST:
            least = min(self._used, key=lambda other: self._used[other].decisions + self._used[other].before)
            if self._used[least].decisions + self._used[least].before < decisions:
                del self._used[least]
        if one is None and len(self._used) < MOST:
            labels = (
                (_TABLE.by_name[name].attribute or f"tickscope.{name}", row[name].decode("utf-8", "backslashreplace"))
                for name in _SAME
            )
            one = self._used[number] = _Used(tuple((name, value) for name, value in labels if value))
        return one

    def _mixed(self, rows: np.ndarray, columns: tuple[str, ...]) -> np.ndarray:
        """A hash of these columns, u64 (n,)."""
        mixed = np.zeros(len(rows), np.uint64)
        for name in columns:
            column = np.ascontiguousarray(rows[name])
            width = -(-column.dtype.itemsize // 8)
            padded = np.zeros((len(rows), width * 8), np.uint8)
            padded[:, : column.dtype.itemsize] = column.view(np.uint8).reshape(len(rows), -1)
            for word in padded.view(np.uint64).T:
                mixed = (mixed ^ word) * self._seed
                mixed ^= mixed >> np.uint64(29)
        return mixed

    def _set(self, seconds: float, now_ns: int) -> None:
        self._used = {number: one for number, one in self._used.items() if now_ns - one.seen_ns < _FORGOTTEN_NS}
        gauges: dict[str, list[tuple[Attributes, float]]] = {
            name: [] for name in ("rate", "refused_share", "limit", "use", "watch_cost")
        }
        for number, one in self._used.items():
            places = self._places(number)
            total = one.with_places(self._used[other] for other in places) if places else one
            limit = total.limit()
            gauges["rate"].append((one.attributes, one.decisions / seconds))
            if total.judged:
                gauges["refused_share"].append((one.attributes, total.failed / total.judged))
            if limit > 0:
                gauges["limit"].append((one.attributes, limit))
                gauges["use"].append((one.attributes, total.units / seconds / limit))
            if one.probed:
                gauges["watch_cost"].append((one.attributes, one.probed / seconds * WATCHED_NS / 1e9))
        for one in self._used.values():
            one.before = one.decisions
            one.decisions = one.judged = one.failed = one.units = one.probed = 0.0
            if one.seen_ns > now_ns - EVERY_NS:
                one.bits[:] = False
        for name, values in gauges.items():
            self._metrics.observe(f"tickscope.limiter.{name}", values, now_ns)
