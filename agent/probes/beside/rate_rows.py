"""Rows of ``limiter_rate``, from what was seen of a limiter in a window and at its bucket. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from math import ceil, floor

import numpy as np

from agent.columns import NULL_I64
from agent.common.spread import off
from agent.kernel.wire import decode
from agent.limiters.catalogue import seen
from agent.probes.beside import bucket
from agent.probes.beside.bucket import Units, left
from agent.probes.beside.bucket_looks import BucketLooks
from agent.probes.beside.go_decisions import Called
from agent.tables import TABLES

_TABLE = TABLES["limiter_rate"]
BUCKET, WINDOWS, BOUNDS = (_TABLE.code("basis", name) for name in ("bucket", "windows", "bounds"))
#: Windows by which it is known how much they differ.
_HISTORY = 32
#: By how much it is unknown when a limiter was asked last, in ns, beside what a few units take to come.
_WHEN_NS = 10_000_000
#: A process that has ended may have decided for so long after the last look at it.
_LAST_NS = 20_000_000
#: Of the most: bounds of a bucket that is not asked for all that it has say less than windows.
_WIDE = 0.1
#: With a decision in so many windows, one without is its end.
_STEADY = 5


@dataclass(frozen=True)
class WindowDecisions:
    """Of a limiter in a window: its records, which of them were let through."""

    records: np.ndarray
    through: np.ndarray

    def of(self, which: np.ndarray) -> WindowDecisions:
        return WindowDecisions(self.records[which], self.through[which])


@dataclass(frozen=True)
class RateSpan:
    """What a row is about. faster: see ``pace``. called: the limiters' ids. last: all is watched from its end on."""

    until_ns: int
    interval_ns: int
    watched_ns: int
    faster: float
    called: Called
    last: bool = False


@dataclass
class Limiter:
    """record: one of its decisions. each: of each window, let through, refused, and its length in ns. quiet: windows
    without a decision so far. callers: goroutines that were seen to ask.
    faster: of the last window with a decision. begun_ns: when its process began.
    """

    record: np.ndarray | None = None
    bucket: BucketLooks = field(default_factory=BucketLooks)
    each: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    quiet: int = 0
    callers: int = 1
    faster: float = 1.0
    begun_ns: int = 0

    def decided(self, now: WindowDecisions, span: RateSpan) -> None:
        """Takes note of a window in which it did."""
        self.record, self.faster = now.records[-1:], span.faster
        self.begun_ns = int(self.record["proc"]["proc_start_ns"][0])
        self.callers = max(self.callers, len(np.unique(now.records["goroutine"])))
        self.bucket.asked(now.records, now.through)

    def stops(self, units: Units | None) -> bool:
        """Whether it decided in each window so far, and in this one it does not; without looks at its bucket nobody
        knows since when.
        """
        steady = list(self.each)[-_STEADY:]
        return not self.bucket.sees and not units and len(steady) == _STEADY and all(a + r for a, r, _ in steady)


def named(record: np.ndarray, span: RateSpan) -> np.ndarray:
    row = decode(record, "limiter_rate").rows
    row["limiter_id"], row["library"] = span.called(record), list(seen())[int(record["library"][0])].encode()[:48]
    row["t_ns"], row["interval_ns"], row["watched_ns"], row["pace"], row["tid"] = (
        span.until_ns,
        span.interval_ns,
        span.watched_ns,
        span.faster,
        NULL_I64,
    )
    return row


def row_of(one: Limiter, now: WindowDecisions, span: RateSpan) -> np.ndarray:
    """Of a limiter of which a record is known. Takes note of what it did in the window."""
    last, first = now.through if span.last else None, not one.each
    units = one.bucket.let_through(span.until_ns, now.records, one.callers, bool(np.isnan(one.faster)), last)
    still_ns = one.bucket.still_since(span.until_ns)
    if len(now.records) or not one.each:
        if not one.each:
            span = replace(span, interval_ns=min(span.interval_ns, max(span.until_ns - one.begun_ns, span.watched_ns)))
        row = seen_of(one, now, span)
    elif still_ns:
        row = _asked_until(one, span, still_ns)
    elif one.stops(units):
        row = _unseen(one, span, 0.5)
        one.each.append((0, 0, span.watched_ns))
    else:
        row = seen_of(one, now, span)
        if units is None and len(one.bucket.last):
            row["allowed_high"] = max(int(row["allowed_high"][0]), left(one.bucket.last[0], span.until_ns))
    _from_bucket(row, one, units)
    if first:
        _begun_within(row, one)
    return row


def _begun_within(row: np.ndarray, one: Limiter) -> None:
    """Of the first window: nobody knows since when it decides, nor what a bucket that was full had it let through at
    once.
    """
    known = len(one.bucket.last) > 0
    for name in ("allowed", "refused"):
        seen_now, about = int(row[f"seen_{name}"][0]), int(row[name][0])
        row[f"{name}_low"], row[name] = min(seen_now, int(row[f"{name}_low"][0])), (seen_now + about) // 2
    most = bucket.most(one.bucket.last[0], int(row["interval_ns"][0])) if known else bucket.ANY
    if most < bucket.ANY:
        at_once = max(0, most - ceil(float(one.bucket.last["limit"][0]) * int(row["interval_ns"][0]) / 1e9))
        row["allowed"], row["allowed_high"] = max(int(row["seen_allowed"][0]), (at_once + most) // 2), most


def unwatched(one: Limiter, span: RateSpan) -> np.ndarray:
    """Between two windows that are far apart."""
    units = one.bucket.let_through(span.until_ns, _no(one), one.callers, bool(np.isnan(one.faster)))
    row = _asked_until(one, span, one.bucket.still_since(span.until_ns) or span.until_ns)
    _from_bucket(row, one, units)
    return row


def last_of(one: Limiter, span: RateSpan) -> np.ndarray:
    """Of one whose process has ended."""
    units = one.bucket.let_through(span.until_ns, _no(one), one.callers, bool(np.isnan(one.faster)))
    if not one.bucket.sees or not len(one.bucket.last):
        return _unseen(one, span)
    looked_ns = int(one.bucket.last["t_ns"][0])
    still_ns = one.bucket.still_since(span.until_ns)
    row = _asked_until(one, span, min(still_ns or looked_ns, looked_ns) + _LAST_NS)
    if units is not None and not still_ns:
        units += Units(0.0, 0.0, float(left(one.bucket.last[0], looked_ns + _LAST_NS)), exact=False)
    _from_bucket(row, one, units)
    return row


def _no(one: Limiter) -> np.ndarray:
    assert one.record is not None
    return one.record[:0]


def seen_of(one: Limiter, now: WindowDecisions, span: RateSpan) -> np.ndarray:
    """By what was seen in the window."""
    assert one.record is not None
    row = named(one.record, span)
    allowed = int(np.count_nonzero(now.through))
    refused = len(now.through) - allowed
    row["seen_allowed"], row["seen_refused"] = allowed, refused
    row["basis"] = WINDOWS
    one.each.append((allowed, refused, span.watched_ns))
    for at, name in enumerate(("allowed", "refused")):
        _estimate(row, name, one, at, span)
    return row


def _estimate(row: np.ndarray, name: str, one: Limiter, at: int, span: RateSpan) -> None:
    """n in the window, scaled, and the interval that holds the figure in 95 of 100: by how windows differ, and from a
    program that goes its own pace to one that waits for the probes.
    """
    scale, n = span.interval_ns / span.watched_ns, one.each[-1][at]
    high, low = off([each[at] for each in one.each], [each[2] for each in one.each], span.interval_ns - span.watched_ns)
    row[name], row[f"{name}_low"] = round(n * scale), max(n, floor(n * scale - high))
    row[f"{name}_high"] = NULL_I64 if np.isnan(span.faster) else ceil(n + n * (scale - 1) * span.faster + low)


def _unseen(one: Limiter, span: RateSpan, share: float = 1.0) -> np.ndarray:
    """Of an interval in which nothing of it was seen, as in the last window before; share: of it, where it stopped
    within, nobody knows when.
    """
    assert one.record is not None
    row = named(one.record, span)
    row["seen_allowed"] = row["seen_refused"] = 0
    row["basis"] = WINDOWS
    for at, name in enumerate(("allowed", "refused")):
        n = one.each[-1][at] / one.each[-1][2] * span.interval_ns
        row[name], row[f"{name}_low"], row[f"{name}_high"] = (
            round(n * share),
            0,
            NULL_I64 if np.isnan(span.faster) and name == "refused" else ceil(2 * n),
        )
    if len(one.bucket.last):
        row["allowed_high"] = left(one.bucket.last[0], span.until_ns)
        if row["allowed"][0]:
            row["allowed"] = round(float(row["allowed_high"][0]) * share)
    return row


def _asked_until(one: Limiter, span: RateSpan, ended_ns: int) -> np.ndarray:
    """The same where its bucket says when it was asked last."""
    row = _unseen(one, span)
    row["pace"] = one.faster
    asked = min(max(ended_ns - (span.until_ns - span.interval_ns), 0), span.interval_ns)
    watched = [each[2] for each in one.each]
    when = _WHEN_NS + 3e9 / float(one.bucket.last["limit"][0]) if asked and len(one.bucket.last) else 0.0
    for at, name in enumerate(("allowed", "refused")):
        counts = [each[at] for each in one.each]
        per_ns = counts[-1] / watched[-1]
        high, low = off(counts, watched, asked)
        row[name], row[f"{name}_low"] = round(per_ns * asked), max(0, floor(per_ns * (asked - when) - high))
        row[f"{name}_high"] = (
            NULL_I64
            if np.isnan(one.faster) and asked
            else ceil(per_ns * (asked * np.nan_to_num(one.faster, nan=1.0) + when) + low * bool(asked))
        )
    return row


def _from_bucket(row: np.ndarray, one: Limiter, units: Units | None) -> None:
    """What the bucket says, unless windows know better."""
    if units is not None and not (0 <= units.least <= units.most < bucket.ANY and 0 <= units.n < bucket.ANY):
        units = None
    least, most = (0, bucket.ANY) if units is None else (floor(units.least), ceil(units.most))
    low, high = int(row["allowed_low"][0]), int(row["allowed_high"][0])
    wide = most - least > _WIDE * most
    windows = high - low < most - least if high != NULL_I64 else wide and not one.bucket.pressed
    if units is not None and (units.exact or not windows):
        row["basis"] = BUCKET if units.exact else BOUNDS
        row["allowed"], row["allowed_low"], row["allowed_high"] = round(units.n), least, most
        return
    if len(one.bucket.last):
        most = min(most, bucket.most(one.bucket.last[0], int(row["interval_ns"][0])))
    if most < bucket.ANY:
        pressed = high == NULL_I64 and row["seen_refused"][0] > 0  # it lets through what it can
        row["allowed"] = most if pressed else min(int(row["allowed"][0]), most)
        row["allowed_low"] = min(low, most)
        row["allowed_high"] = most if high == NULL_I64 else min(high, most)
