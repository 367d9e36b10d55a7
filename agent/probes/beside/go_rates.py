"""How much a limiter decided that is watched a part of the time only: rows of ``limiter_rate``.

What was let through is read from a token bucket itself, where the library has one: between two looks at it that is limit * elapsed - change of its rest. The bucket never filled
meanwhile where this is a whole number, since all that is taken is whole and what a full bucket does not take is not. Else, and for refusals, windows stand for the time between them.
Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil, floor, nan

import numpy as np

from agent.batch import Batch
from agent.columns import NULL_I64
from agent.common.spread import off
from agent.kernel.wire import decode
from agent.limiters.catalogue import seen
from agent.limiters.library import Seen
from agent.limiters.reading import ALLOWED, DELAYED, UNKNOWN
from agent.probes.beside.go_decisions import Called, unnamed
from agent.probes.beside.pace import pace
from agent.tables import TABLES

_TABLE = TABLES["limiter_rate"]
_BUCKET, _WINDOWS = _TABLE.code("basis", "bucket"), _TABLE.code("basis", "windows")
#: Limiters of a process that are told each by itself, those with most decisions; of the others together one row.
MOST = 64
#: Looks at buckets that are kept of the time before a program was found to decide too often; and of one limiter, among which those that agree are looked for.
TAIL, _LOOKS = 256, 32
#: How far its own time may be from ours, beside what two units take to come.
_STRANGE_NS, _REFILL = 200_000_000, 2_000_000_000
#: What rounding may leave of a whole number, in units.
_WHOLE = 0.01
#: Windows without a decision after which a limiter is told no more; windows by which it is known how much they differ; with a decision each before one without, where it has stopped.
_GONE, _HISTORY, _STEADY = 20, 32, 5
_LOOK = np.dtype([("limit", "<f8"), ("rest", "<f8"), ("last_ns", "<i8"), ("t_ns", "<i8")])


def _libraries() -> tuple[tuple[str, Seen], ...]:
    return tuple(seen().items())


def looks(records: np.ndarray) -> np.ndarray:
    """What each record says of its limiter's bucket, of one library's; limit is a NaN where it says nothing."""
    out = np.zeros(len(records), _LOOK)
    read = _libraries()[int(records["library"][0])][1].bucket if len(records) else None
    out["limit"], out["rest"], out["last_ns"] = read(records) if read is not None else (nan, nan, 0)
    out["t_ns"] = records["t_ns"]
    return out


def taken(at: np.ndarray, since: np.void) -> np.ndarray:
    """Units that were taken from a bucket since another look at it, had it never been full meanwhile; a NaN where its limit, or the clock that it goes by, is another by now."""
    ns = at["last_ns"] - since["last_ns"]
    strange = np.abs(ns - (at["t_ns"] - since["t_ns"])) > _STRANGE_NS + _REFILL / since["limit"]
    return np.where(
        strange | (at["limit"] != since["limit"]), nan, since["rest"] - at["rest"] + since["limit"] * (ns / 1e9)
    )


def agreed(at: np.ndarray) -> int:
    """The last of the looks at a bucket that most agree with: other goroutines may have been at it while one was taken."""
    at = at[-_LOOKS:]
    units = taken(at, at[0])
    apart = np.abs((units[:, None] - units[None, :] + 0.5) % 1.0 - 0.5) < _WHOLE
    votes = apart.sum(1)
    return int(np.flatnonzero(votes == votes.max())[-1])


@dataclass
class _Limiter:
    """record: one of its decisions. look: at its bucket, the last. each: of each window, let through, refused, and its length in ns. cost: of what was let through, a NaN where it differs.
    quiet: windows without a decision so far."""

    record: np.ndarray | None = None
    look: np.void | None = None
    cost: float = 1.0
    each: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    quiet: int = 0


@dataclass(frozen=True)
class _Seen:
    """Of a limiter in a window: its records, which of them were let through; without a window, None."""

    records: np.ndarray
    through: np.ndarray

    def of(self, which: np.ndarray) -> _Seen:
        return _Seen(self.records[which], self.through[which])


@dataclass(frozen=True)
class _Span:
    """What a row is about. faster: see ``pace``. called: the limiters' ids."""

    until_ns: int
    interval_ns: int
    watched_ns: int
    faster: float
    called: Called


class Rates:
    """Of one binary and library. ``covered_ns``: up to then all is told."""

    def __init__(self) -> None:
        self.covered_ns = 0
        self._limiters: dict[tuple[int, int], _Limiter] = {}
        self._tail = np.empty(0, [("pid", "<u4"), ("limiter", "<u8"), ("look", _LOOK)])

    @property
    def pids(self) -> set[int]:
        return {pid for pid, _ in self._limiters}

    def before(self, records: np.ndarray) -> None:
        """Takes note of buckets while each decision is seen."""
        mine = records[-TAIL:]
        tail = np.zeros(len(mine), self._tail.dtype)
        tail["pid"], tail["limiter"], tail["look"] = mine["proc"]["pid"], mine["limiter"], looks(mine)
        self._tail = np.concatenate((self._tail, tail))[-TAIL:]

    def begin(self, now_ns: int) -> None:
        """From now on windows only."""
        self.covered_ns = now_ns
        self._limiters.clear()
        for pid, limiter in np.unique(self._tail[["pid", "limiter"]]).tolist()[-MOST:]:
            mine = self._tail[(self._tail["pid"] == pid) & (self._tail["limiter"] == limiter)][-_LOOKS:]
            at = agreed(mine["look"])
            self._limiters[pid, limiter] = _Limiter(look=mine["look"][at])

    def window(
        self, records: np.ndarray, since_ns: int, until_ns: int, hit_ns: float, called: Called = unnamed
    ) -> list[Batch]:
        """The rows of what is not told yet up to the end of a window, by the records from it. hit_ns: what a decision cost its thread. called: the limiters' ids."""
        records = np.sort(records[(records["t_ns"] >= since_ns) & (records["t_ns"] < until_ns)], order="t_ns")
        interval, watched = until_ns - self.covered_ns, max(until_ns - since_ns, 1)
        self.covered_ns = until_ns
        seen_now = _Seen(records, _let_through(records))
        rows: list[np.ndarray] = []
        for pid in sorted(self.pids | set(np.unique(records["proc"]["pid"]).tolist())):
            mine = seen_now.of(records["proc"]["pid"] == pid)
            rows += self._process(
                pid, mine, _Span(until_ns, interval, watched, pace(mine.records, watched, hit_ns), called)
            )
        return _batch(rows)

    def ended(self, until_ns: int, pids: set[int], called: Called) -> list[Batch]:
        """The rows of processes that are not watched in windows any more: up to then as in the last of them."""
        interval = until_ns - self.covered_ns
        gone = [key for key in self._limiters if key[0] in pids]
        return _batch(
            [
                _unseen(one, _Span(until_ns, interval, 0, nan, called))
                for key in gone
                if (one := self._limiters.pop(key)).record is not None and one.each
            ]
        )

    def _process(self, pid: int, now: _Seen, span: _Span) -> list[np.ndarray]:
        addresses, counts = np.unique(now.records["limiter"], return_counts=True)
        most = addresses[np.argsort(-counts, kind="stable")[:MOST]].tolist()
        known = [address for owner, address in self._limiters if owner == pid]
        told = list(dict.fromkeys([*known, *most]))[: 2 * MOST]
        out = []
        for address in told:
            mine = now.of(now.records["limiter"] == address)
            one = self._limiters.setdefault((pid, address), _Limiter())
            one.quiet = 0 if len(mine.records) else one.quiet + 1
            if one.quiet > _GONE:
                del self._limiters[pid, address]
                continue
            if len(mine.records):
                one.record = mine.records[-1:]
            if one.record is not None:
                stopped = (
                    one.quiet == 1
                    and len(one.each) >= _STEADY
                    and all(each[0] + each[1] for each in list(one.each)[-_STEADY:])
                )
                out.append(_unseen(one, span, 0.5) if stopped else _row(one, mine, span))
                one.each.extend([(0, 0, span.watched_ns)] * stopped)
        rest = now.of(~np.isin(now.records["limiter"], told))
        if len(rest.records):
            out.append(_row(_Limiter(rest.records[-1:]), rest, span))
            out[-1]["limiter_id"], out[-1]["basis"] = b"others", _WINDOWS
        return out


def _batch(rows: list[np.ndarray]) -> list[Batch]:
    return [Batch("limiter_rate", np.concatenate(rows))] if rows else []


def _let_through(records: np.ndarray) -> np.ndarray:
    if not len(records):
        return np.zeros(0, np.bool_)
    result = _libraries()[int(records["library"][0])][1].read(records)["result"]
    return np.isin(result, (ALLOWED, DELAYED))


def _named(record: np.ndarray, span: _Span) -> np.ndarray:
    row = decode(record, "limiter_rate").rows
    row["limiter_id"], row["library"] = (
        span.called(record),
        _libraries()[int(record["library"][0])][0].encode()[:48],
    )
    row["t_ns"], row["interval_ns"], row["watched_ns"], row["pace"], row["tid"] = (
        span.until_ns,
        span.interval_ns,
        span.watched_ns,
        span.faster,
        NULL_I64,
    )
    return row


def _row(one: _Limiter, now: _Seen, span: _Span) -> np.ndarray:
    assert one.record is not None
    row = _named(one.record, span)
    allowed = int(np.count_nonzero(now.through))
    refused = len(now.through) - allowed
    row["seen_allowed"], row["seen_refused"] = allowed, refused
    one.each.append((allowed, refused, span.watched_ns))
    _estimate(row, "refused", one, 1, span)
    exact = _from_bucket(one, now)
    row["basis"] = _WINDOWS if exact is None else _BUCKET
    if exact is not None:
        row["allowed"] = row["allowed_low"] = row["allowed_high"] = exact
        return row
    _estimate(row, "allowed", one, 0, span)
    if not len(now.records) and one.look is not None:
        row["allowed_high"] = max(int(row["allowed_high"][0]), _most(one, span.until_ns))
    return row


def _most(one: _Limiter, until_ns: int) -> int:
    """What its bucket can have let through since the last look at it."""
    assert one.look is not None
    rest, limit, looked_ns = (float(one.look[name]) for name in ("rest", "limit", "t_ns"))
    return max(0, ceil(rest + limit * (until_ns - looked_ns) / 1e9))


def _unseen(one: _Limiter, span: _Span, share: float = 1.0) -> np.ndarray:
    """Of an interval in which nothing of it was seen, as in the last of those before; share: of it, where it stopped within, nobody knows when."""
    assert one.record is not None
    row = _named(one.record, span)
    row["seen_allowed"] = row["seen_refused"] = 0
    row["basis"] = _WINDOWS
    for at, name in enumerate(("allowed", "refused")):
        n = one.each[-1][at] / one.each[-1][2] * span.interval_ns
        row[name], row[f"{name}_low"], row[f"{name}_high"] = (
            round(n * share),
            0,
            NULL_I64 if np.isnan(span.faster) and name == "refused" else ceil(2 * n),
        )
    if one.look is not None:
        row["allowed_high"] = _most(one, span.until_ns)
        if row["allowed"][0]:
            row["allowed"] = round(float(row["allowed_high"][0]) * share)
    return row


def _estimate(row: np.ndarray, name: str, one: _Limiter, at: int, span: _Span) -> None:
    """n in the window, scaled, and the interval that holds the figure in 95 of 100: by how windows differ, and from a program that goes its own pace to one that waits for the probes."""
    scale, n = span.interval_ns / span.watched_ns, one.each[-1][at]
    high, low = off([each[at] for each in one.each], [each[2] for each in one.each], span.interval_ns - span.watched_ns)
    row[name], row[f"{name}_low"] = round(n * scale), max(n, floor(n * scale - high))
    row[f"{name}_high"] = NULL_I64 if np.isnan(span.faster) else ceil(n + n * (scale - 1) * span.faster + low)


def _from_bucket(one: _Limiter, now: _Seen) -> int | None:
    """Decisions that its bucket says were let through since the last look at it, where it never filled; takes a look."""
    if not len(now.records):
        return None
    before, at, costs = one.look, looks(now.records)[-_LOOKS:], np.unique(now.records["n"][now.through])
    if np.isnan(at["limit"]).any():
        one.look = None
        return None
    chosen = agreed(at)
    one.look = at[chosen]
    if len(costs):
        one.cost = float(costs[0]) if len(costs) == 1 and 0 < costs[0] < UNKNOWN else nan
    if before is None or np.isnan(one.cost):
        return None
    units = float(taken(at[chosen : chosen + 1], before)[0])
    if np.isnan(units) or abs(units - round(units)) > _WHOLE or units < -_WHOLE:
        return None
    return round(units / one.cost)
