"""Folds rows into series, vectorised: groups them by labels, and applies each metric's instrument."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from agent.columns import HIST_BUCKETS, NULL_I64
from agent.tables import TABLES
from exporters.metric import OTHER, Metric
from exporters.values import Value, column_values

#: A drift is the slope over at least this time: offsets have some ns of noise, so 10 s resolve 1 ppb.
DRIFT_SPAN_NS = 10 * 10**9

Attributes = tuple[tuple[str, Value], ...]


class Exemplar(NamedTuple):
    """A span with one of a histogram's values. value: in the metric's raw unit. wall_ns: the span's end, Unix time.
    seen_ns: when it was recorded here, CLOCK_BOOTTIME.
    """

    value: float
    wall_ns: int
    trace_id: bytes
    span_id: bytes
    seen_ns: int


class SentSpans(NamedTuple):
    """Rows of a table that became spans: (trace, span) ids and ends (Unix time ns) of each. seen_ns: CLOCK_BOOTTIME."""

    table: str
    rows: np.ndarray
    ids: Sequence[tuple[bytes, bytes]]
    wall_ns: Sequence[int]
    seen_ns: int


@dataclass
class MetricSeries:
    """One series since it was first seen. Times are CLOCK_BOOTTIME ns; value, min and max are in the metric's raw unit.

    since_ns: its start. A series that was removed and comes back starts again from 0. value: sum of a counter or
    histogram, or last value of a gauge. buckets: 64 counts of a histogram, shape (64,) i64. slope_from: (t_ns, value)
    at the start of a drift's slope. fixed: exists from the start, never removed. ready: False for a drift before its
    first slope, and for a gauge whose newest row is unknown. exemplars: of a histogram, the latest of each bucket.
    """

    attributes: Attributes
    since_ns: int
    seen_ns: int
    value: float = 0
    count: int = 0
    low: float | None = None
    high: float | None = None
    buckets: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    fixed: bool = False
    slope_from: tuple[int, int] | None = None
    ready: bool = True
    exemplars: dict[int, Exemplar] = field(default_factory=dict)

    def copy(self) -> MetricSeries:
        return MetricSeries(
            self.attributes,
            self.since_ns,
            self.seen_ns,
            self.value,
            self.count,
            self.low,
            self.high,
            self.buckets.copy(),
            exemplars=self.exemplars.copy(),
        )


def begin(metric: Metric, attributes: Attributes, t_ns: int) -> MetricSeries:
    series = MetricSeries(attributes, t_ns, t_ns)
    if metric.instrument == "histogram":
        series.buckets = np.zeros(HIST_BUCKETS, np.int64)
    return series


def attributes(metric: Metric, key: np.ndarray) -> Attributes:
    """The labels of one key (shape (1,)). If all label sets are known, a value that is none of the names is OTHER."""
    pairs = ((metric.attribute(c), column_values(metric.column(c), key[c])[0]) for c in metric.columns)
    known = ((name, OTHER if value is None and metric.bounded else value) for name, value in pairs)
    return (*metric.labels, *((name, value) for name, value in known if value is not None))


def group(metric: Metric, rows: np.ndarray, more: tuple[str, ...] = ()) -> tuple[np.ndarray, np.ndarray]:
    """(the distinct keys, each row's index among them): rows grouped by the columns that become attributes, and
    ``more``.
    """
    if not metric.columns and not more:
        return np.zeros(1, "V1"), np.zeros(len(rows), np.int64)
    declared = TABLES[metric.table].by_name
    columns = tuple(dict.fromkeys((*metric.columns, *more)))
    key = np.zeros(len(rows), [(c, declared[c].dtype) for c in columns])
    for c in columns:
        key[c] = rows[c]
    if metric.label_if and metric.label_if[0] in metric.columns:
        label, column, value = metric.label_if
        wanted = declared[column].code(value) if declared[column].kind == "enum" else value.encode()
        key[label][rows[column] != wanted] = np.zeros(1, key.dtype[label])
    if metric.bounded:
        for c in metric.columns:
            names = (
                range(len(declared[c].names)) if declared[c].kind == "enum" else [n.encode() for n in declared[c].names]
            )
            key[c][~np.isin(key[c], names)] = declared[c].null
    flat = key.view(np.dtype((np.void, key.dtype.itemsize)))
    unique, inverse = np.unique(flat, return_inverse=True)
    return unique.view(key.dtype), inverse.reshape(-1)


def starting_keys(metric: Metric) -> np.ndarray:
    """The keys of the series that begin at 0, before their first row."""
    sets = list(metric.starts())
    rows = TABLES[metric.table].empty(len(sets))
    for i, values in enumerate(sets):
        for column, value in values.items():
            rows[column][i] = value
    return group(metric, rows)[0]


def with_beside(metric: Metric, keys: np.ndarray, known: Container[bytes]) -> np.ndarray:
    """The keys, followed by those of series that begin with new ones (``Metric.beside``)."""
    assert metric.beside is not None
    column, names = metric.beside
    new = [at for at in range(len(keys)) if keys[at : at + 1].tobytes() not in known]
    more = {}
    for at in new:
        for name in names:
            key = keys[at : at + 1].copy()
            key[column] = metric.column(column).code(name)
            more[key.tobytes()] = key
    have = {keys[at : at + 1].tobytes() for at in new}
    return np.concatenate([keys, *(key for raw, key in more.items() if raw not in have and raw not in known)])


def numbers(rows: np.ndarray, column: str) -> np.ndarray:
    """A column as f64, unknown as NaN."""
    values = rows[column].astype(np.float64)
    if rows[column].dtype.kind == "i":
        values[rows[column] == NULL_I64] = np.nan
    return values


def add_histograms(metric: Metric, rows: np.ndarray, inverse: np.ndarray, series: list[MetricSeries]) -> None:
    n = len(series)
    buckets = np.zeros((n, HIST_BUCKETS), np.int64)
    if metric.hist:
        np.add.at(buckets, inverse, rows["hist"])
        total, low, high = (numbers(rows, c) if c else np.full(len(rows), np.nan) for c in metric.hist)
    else:
        total = low = high = sizes(metric, rows)
        np.add.at(buckets, (inverse, buckets_of(total)), 1)
    sums = np.bincount(inverse, np.nan_to_num(total), n)
    lows, highs = np.full(n, np.inf), np.full(n, -np.inf)
    np.fmin.at(lows, inverse, low)
    np.fmax.at(highs, inverse, high)
    for i, s in enumerate(series):
        s.buckets += buckets[i]
        s.count += int(buckets[i].sum())
        s.value += float(sums[i])
        if np.isfinite(lows[i]):
            s.low = float(lows[i]) if s.low is None else min(s.low, float(lows[i]))
        if np.isfinite(highs[i]):
            s.high = float(highs[i]) if s.high is None else max(s.high, float(highs[i]))


def add_exemplars(metric: Metric, sent: SentSpans, series: Mapping[bytes, MetricSeries]) -> None:
    """Each span is an exemplar of the series that counts its row, if there is one. series: by key."""
    values = sizes(metric, sent.rows)
    wanted = np.flatnonzero(are_of(metric, sent.rows) & ~np.isnan(values))
    keys, inverse = group(metric, sent.rows[wanted])
    held = [series.get(keys[at : at + 1].tobytes()) for at in range(len(keys))]
    buckets = buckets_of(values[wanted])
    for row, key, bucket in zip(wanted.tolist(), inverse.tolist(), buckets.tolist(), strict=True):
        if (one := held[key]) is not None:
            one.exemplars[bucket] = Exemplar(float(values[row]), sent.wall_ns[row], *sent.ids[row], sent.seen_ns)


def sizes(metric: Metric, rows: np.ndarray) -> np.ndarray:
    """What a histogram counts of single values, in the raw unit; NaN if unknown."""
    how = metric.single[1] if metric.single else metric.values
    values = how(rows) if how else numbers(rows, metric.value)
    sized: np.ndarray = np.abs(values) if metric.magnitude else np.maximum(values, 0)
    return sized


def buckets_of(values: np.ndarray) -> np.ndarray:
    """The bucket of each value, 0 to 63."""
    # frexp gives the exponent e of [2^(e-1), 2^e) exactly, whereas log2 may round up to the next power.
    exponent = np.frexp(np.maximum(values, 1))[1] - 1
    return np.asarray(np.minimum(exponent, HIST_BUCKETS - 1))


def of(metric: Metric, rows: np.ndarray) -> np.ndarray:
    """The metric's rows, with known values or not."""
    return rows[are_of(metric, rows)] if metric.where else rows


def are_of(metric: Metric, rows: np.ndarray) -> np.ndarray:
    """Whether each row is one of the metric: shape (n,) bool."""
    if not metric.where:
        return np.ones(len(rows), np.bool_)
    column, names = metric.where
    return np.isin(rows[column], [TABLES[metric.table].code(column, n) for n in names])


def is_null(metric: Metric, rows: np.ndarray) -> np.ndarray:
    value = metric.values(rows) if metric.values else rows[metric.value]
    return np.asarray(
        np.isnan(value) if value.dtype.kind == "f" else value == TABLES[metric.table].by_name[metric.value].null
    )


def ends(rows: np.ndarray, inverse: np.ndarray, n: int) -> list[tuple[int, int]]:
    """Indices of each key's oldest and newest row."""
    order = np.lexsort((rows["t_ns"], inverse))
    first, after = (np.searchsorted(inverse[order], np.arange(n), side=side) for side in ("left", "right"))
    return list(zip(order[first].tolist(), order[after - 1].tolist(), strict=True))


def set_gauges(metric: Metric, rows: np.ndarray, inverse: np.ndarray, series: list[MetricSeries]) -> None:
    for s, (_, at) in zip(series, ends(rows, inverse, len(series)), strict=True):
        one = rows[at : at + 1]
        value = (metric.values(one) if metric.values else one[metric.value])[0].item()
        t_ns = int(one["t_ns"][0])
        if not metric.drift:
            s.value, s.ready = value, True
        elif s.slope_from is None:
            s.slope_from, s.ready = (t_ns, value), False
        elif t_ns - s.slope_from[0] >= DRIFT_SPAN_NS:
            s.value = (value - s.slope_from[1]) * 1e9 / (t_ns - s.slope_from[0])
            s.slope_from, s.ready = (t_ns, value), True


class Totals:
    """Computes increments from running totals. Remembers up to ``most`` totals, and removes the least recently seen."""

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._last: OrderedDict[bytes, int] = OrderedDict()

    def increments(self, metric: Metric, rows: np.ndarray) -> tuple[np.ndarray, int]:
        """(each row's increment, shape (n,); how many totals were removed). A first total is only the base, unless it
        began with the agent. A total that decreased was reset, and counts entirely.
        """
        keys, inverse = group(metric, rows, metric.identity)
        out = np.zeros(len(rows))
        for at, (first, newest) in enumerate(ends(rows, inverse, len(keys))):
            raw, total = keys[at : at + 1].tobytes(), int(rows[metric.value][newest])
            base = 0 if metric.since_start else int(rows[metric.value][first])
            before = self._last.pop(raw, base)
            out[newest] = total - before if total >= before else total
            self._last[raw] = total
        forgotten = max(len(self._last) - self._most, 0)
        for _ in range(forgotten):
            self._last.popitem(last=False)
        return out, forgotten
