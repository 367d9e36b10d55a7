"""Folds batches into metric series; one store serves OTLP and the Prometheus endpoint.

``offer`` only keeps the batch: folding happens when somebody reads, or when enough has gathered, as one vectorised pass over
all rows of a table. Python code runs once per series and fold, never per row.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field

import numpy as np

from agent.batch import Batch
from agent.columns import HIST_BUCKETS, NULL_I64
from agent.tables import TABLES
from exporters.metrics import BY_TABLE, MAX_SERIES, METRICS, Metric
from exporters.values import Value, column_values

#: Bytes of unfolded rows after which ``offer`` folds at once.
FOLD_BYTES = 1 << 20
#: A gauge is no longer shown when its last row is this much older than the newest row of its table.
GAUGE_TTL_NS = 300 * 10**9
#: A counter or histogram whose last row is this much older than the newest of its table makes room for others, where room is needed.
SERIES_TTL_NS = 3600 * 10**9
#: A drift is the slope over at least this time: the offsets' noise is some ns, so that 10 s resolve 1 ppb.
DRIFT_SPAN_NS = 10 * 10**9
_DISTINCT_KEPT = 4096
#: Tables of servers that are asked again and again: a row without a value says that there is none now.
_POLLED = {"clock_daemon", "queue_lag"}
OVERFLOW: tuple[tuple[str, Value], ...] = (("otel.metric.overflow", True),)

Attributes = tuple[tuple[str, Value], ...]


@dataclass
class Series:
    """One series since it was first seen. Times are CLOCK_BOOTTIME ns; sum, min and max are in the metric's unit.

    since_ns: when it began. One that had to make room and comes back is another series, which begins then, from nothing.
    value: sum of a counter or histogram, or last value of a gauge.  buckets: 64 counts of a histogram, shape (64,) i64.
    total: the last running total of an absolute counter.  slope_from: (t_ns, value) where a drift's slope begins.
    ready: a drift has no value before its first slope, a gauge none while its newest row says that it is not known.
    """

    attributes: Attributes
    since_ns: int
    seen_ns: int
    value: float = 0
    count: int = 0
    low: float | None = None
    high: float | None = None
    buckets: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    total: int | None = None
    slope_from: tuple[int, int] | None = None
    ready: bool = True

    def copy(self) -> Series:
        return Series(self.attributes, self.since_ns, self.seen_ns, self.value, self.count, self.low, self.high, self.buckets.copy())


class MetricStore:
    """Implements agent.batch.Sink. ``offer`` belongs to the agent's thread, ``collect`` to any."""

    name = "metrics"

    def __init__(self, max_series: int = MAX_SERIES) -> None:
        self._max_series = max_series
        self._lock = threading.Lock()
        self._waiting: deque[Batch] = deque()
        self._waiting_bytes = 0
        self._series: dict[Metric, dict[bytes, Series]] = {m: {} for m in METRICS}
        self._distinct: dict[str, OrderedDict[bytes, None]] = {m.name: OrderedDict() for m in METRICS if m.distinct}
        self._newest: dict[str, int] = {}
        self._left_out = 0

    def offer(self, batch: Batch) -> None:
        """Takes a batch; tables without a metric are ignored."""
        if batch.table not in BY_TABLE or not len(batch.rows):
            return
        with self._lock:
            self._waiting.append(batch)
            self._waiting_bytes += batch.rows.nbytes
            if self._waiting_bytes > FOLD_BYTES:
                self._fold()

    def collect(self) -> list[tuple[Metric, list[Series]]]:
        """A copy of every metric that has series, with all that was offered before."""
        with self._lock:
            self._fold()
            shown: dict[str, tuple[Metric, list[Series]]] = {}
            for m in METRICS:
                _, series = shown.setdefault(m.name, (m, []))
                series += [s.copy() for s in self._series[m].values() if self._is_live(m, s)]
            return [(m, s) for m, s in shown.values() if s]

    def losses(self) -> dict[str, int]:
        """``series_limit``: values left out, since their metric has no room for one more series and the overflow series cannot take them."""
        return {"series_limit": self._left_out}

    def close(self) -> None:
        """Nothing to release."""

    def _is_live(self, metric: Metric, series: Series) -> bool:
        return metric.instrument != "gauge" or (series.ready and self._newest[metric.table] - series.seen_ns < GAUGE_TTL_NS)

    def _fold(self) -> None:
        gathered: dict[str, list[np.ndarray]] = {}
        while self._waiting:
            batch = self._waiting.popleft()
            gathered.setdefault(batch.table, []).append(batch.rows)
        self._waiting_bytes = 0
        for table, pieces in gathered.items():
            rows = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
            self._newest[table] = max(self._newest.get(table, 0), int(rows["t_ns"].max()))
            for metric in BY_TABLE[table]:
                self._fold_metric(metric, rows)

    def _fold_metric(self, metric: Metric, offered: np.ndarray) -> None:
        rows = self._wanted(metric, offered)
        if len(rows):
            self._add(metric, rows)
        if metric.instrument == "gauge" and metric.table in _POLLED:
            self._forget(metric, offered)

    def _forget(self, metric: Metric, offered: np.ndarray) -> None:
        """A gauge that is not known any more, since its newest row says so (its daemon or broker is gone), is not shown."""
        rows = _of(metric, offered)
        rows = rows[_is_null(metric, rows)]
        if not len(rows):
            return
        keys, inverse = _group(metric, rows)
        for at, (_, newest) in enumerate(_ends(rows, inverse, len(keys))):
            series = self._series[metric].get(keys[at : at + 1].tobytes())
            if series is not None and rows["t_ns"][newest] > series.seen_ns:
                series.ready = False

    def _add(self, metric: Metric, rows: np.ndarray) -> None:
        keys, inverse = _group(metric, rows)
        series = self._lookup(metric, keys, inverse, int(rows["t_ns"].min()))
        ends = np.full(len(series), NULL_I64)
        np.maximum.at(ends, inverse, rows["t_ns"])
        for s, end in zip(series, ends.tolist(), strict=True):
            s.seen_ns = max(s.seen_ns, end)
        if metric.instrument == "histogram":
            _add_histograms(metric, rows, inverse, series)
        elif metric.instrument == "gauge":
            _set_gauges(metric, rows, inverse, series)
        elif metric.absolute:
            _add_totals(metric, rows, inverse, series)
        else:
            weights = _numbers(rows, metric.value) if metric.value else np.ones(len(rows))
            for s, total in zip(series, np.bincount(inverse, weights, len(series)).tolist(), strict=True):
                s.value += total

    def _wanted(self, metric: Metric, rows: np.ndarray) -> np.ndarray:
        rows = _of(metric, rows)
        if metric.value and metric.value != "hist":
            rows = rows[~_is_null(metric, rows)]
        if metric.distinct and len(rows):
            seen = self._distinct[metric.name]
            ids, first = np.unique(rows[metric.distinct], return_index=True)
            fresh = [at for i, at in zip(ids.tolist(), first.tolist(), strict=True) if i not in seen]
            seen.update((i, None) for i in ids.tolist())
            while len(seen) > _DISTINCT_KEPT:
                seen.popitem(last=False)
            rows = rows[sorted(fresh)]
        return rows

    def _lookup(self, metric: Metric, keys: np.ndarray, inverse: np.ndarray, t_ns: int) -> list[Series]:
        raws = [keys[at : at + 1].tobytes() for at in range(len(keys))]
        most = self._max_series - 1
        if metric.columns and len(self._series[metric].keys() | raws) > most:
            self._make_room(metric)
        known, counts = self._series[metric], np.bincount(inverse, minlength=len(keys))
        own = len(known) - (b"" in known)
        out = []
        for at, raw in enumerate(raws):
            series = known.get(raw)
            if series is None and own < most:
                own += 1
                series = known[raw] = _begin(metric, _attributes(metric, keys[at : at + 1]), t_ns)
            elif series is None and metric.additive:
                series = known.setdefault(b"", _begin(metric, OVERFLOW, t_ns))
            elif series is None:
                self._left_out += int(counts[at])
                series = _begin(metric, OVERFLOW, t_ns)  # takes the rows, and is nobody's
            out.append(series)
        return out

    def _make_room(self, metric: Metric) -> None:
        """Forgets series not seen for long. Not before: the count of what is rare must not begin anew each time that it happens."""
        oldest = self._newest[metric.table] - (GAUGE_TTL_NS if metric.instrument == "gauge" else SERIES_TTL_NS)
        self._series[metric] = {raw: s for raw, s in self._series[metric].items() if s.seen_ns > oldest}


def _begin(metric: Metric, attributes: Attributes, t_ns: int) -> Series:
    series = Series(attributes, t_ns, t_ns)
    if metric.instrument == "histogram":
        series.buckets = np.zeros(HIST_BUCKETS, np.int64)
    return series


def _attributes(metric: Metric, key: np.ndarray) -> Attributes:
    by_name = TABLES[metric.table].by_name
    pairs = ((metric.attribute(c), column_values(by_name[c], key[c])[0]) for c in metric.columns)
    return (*metric.labels, *((name, value) for name, value in pairs if value is not None))


def _group(metric: Metric, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the distinct keys, each row's index among them): rows grouped by the columns that become attributes."""
    if not metric.columns:
        return np.zeros(1, "V1"), np.zeros(len(rows), np.int64)
    declared = TABLES[metric.table].by_name
    key = np.zeros(len(rows), [(c, declared[c].dtype) for c in metric.columns])
    for c in metric.columns:
        key[c] = rows[c]
    if metric.client_only:
        key[metric.client_only][rows["role"] != declared["role"].code("client")] = np.void(bytes(16))
    flat = key.view(np.dtype((np.void, key.dtype.itemsize)))
    unique, inverse = np.unique(flat, return_inverse=True)
    return unique.view(key.dtype), inverse.reshape(-1)


def _numbers(rows: np.ndarray, column: str) -> np.ndarray:
    """A column as f64, unknown as NaN."""
    values = rows[column].astype(np.float64)
    if rows[column].dtype.kind == "i":
        values[rows[column] == NULL_I64] = np.nan
    return values


def _add_histograms(metric: Metric, rows: np.ndarray, inverse: np.ndarray, series: list[Series]) -> None:
    n = len(series)
    buckets = np.zeros((n, HIST_BUCKETS), np.int64)
    if metric.hist:
        np.add.at(buckets, inverse, rows["hist"])
        total, low, high = (_numbers(rows, c) if c else np.full(len(rows), np.nan) for c in metric.hist)
    else:
        numbers = _numbers(rows, metric.value)
        total = low = high = np.abs(numbers) if metric.magnitude else np.maximum(numbers, 0)
        # frexp gives the exponent e of [2^(e-1), 2^e) exactly, where log2 may round up to the next power.
        exponent = np.frexp(np.maximum(total, 1))[1] - 1
        np.add.at(buckets, (inverse, np.minimum(exponent, HIST_BUCKETS - 1)), 1)
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


def _of(metric: Metric, rows: np.ndarray) -> np.ndarray:
    """Its rows, whether its value is known or not."""
    if not metric.where:
        return rows
    column, names = metric.where
    return rows[np.isin(rows[column], [TABLES[metric.table].code(column, n) for n in names])]


def _is_null(metric: Metric, rows: np.ndarray) -> np.ndarray:
    value = rows[metric.value]
    return np.asarray(np.isnan(value) if value.dtype.kind == "f" else value == TABLES[metric.table].by_name[metric.value].null)


def _ends(rows: np.ndarray, inverse: np.ndarray, n: int) -> list[tuple[int, int]]:
    """Indices of each key's oldest and newest row."""
    order = np.lexsort((rows["t_ns"], inverse))
    first, after = (np.searchsorted(inverse[order], np.arange(n), side=side) for side in ("left", "right"))
    return list(zip(order[first].tolist(), order[after - 1].tolist(), strict=True))


def _set_gauges(metric: Metric, rows: np.ndarray, inverse: np.ndarray, series: list[Series]) -> None:
    for s, (_, at) in zip(series, _ends(rows, inverse, len(series)), strict=True):
        t_ns, value = int(rows["t_ns"][at]), rows[metric.value][at].item()
        if not metric.drift:
            s.value, s.ready = value * metric.scale if metric.scale != 1 else value, True
        elif s.slope_from is None:
            s.slope_from, s.ready = (t_ns, value), False
        elif t_ns - s.slope_from[0] >= DRIFT_SPAN_NS:
            s.value = (value - s.slope_from[1]) * 1e9 / (t_ns - s.slope_from[0])
            s.slope_from, s.ready = (t_ns, value), True


def _add_totals(metric: Metric, rows: np.ndarray, inverse: np.ndarray, series: list[Series]) -> None:
    for s, (first, at) in zip(series, _ends(rows, inverse, len(series)), strict=True):
        total = int(rows[metric.value][at])
        # The first total is only the base. One that went back was reset (a probe attached anew): all of it is new.
        before = int(rows[metric.value][first]) if s.total is None else s.total
        s.value += total - before if total >= before else total
        s.total = total
