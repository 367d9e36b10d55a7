"""Folds batches into metric series; one store serves OTLP and the Prometheus endpoint.

``offer`` only keeps the batch. It is folded when a reader comes, or when enough rows have gathered, in one vectorised
pass over all rows of a table. Python code runs once per series and fold, never per row.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

import numpy as np

from agent.batch import Batch, ended
from agent.columns import NULL_I64
from exporters import fold
from exporters.fold import Attributes, MetricSeries, SentSpans, Totals
from exporters.metric import Metric
from exporters.metrics import MAX_SERIES, registry
from exporters.page_settings import MAX_SAMPLES
from exporters.room import Room
from exporters.values import Value

#: Bytes of unfolded rows after which ``offer`` folds at once.
FOLD_BYTES = 1 << 20
#: A gauge is not shown when its last row is this much older than the newest row of its table.
GAUGE_TTL_NS = 300 * 10**9
#: A counter or histogram whose last row is this much older than the newest of its table is removed if room is needed.
SERIES_TTL_NS = 3600 * 10**9
_DISTINCT_KEPT = 4096
#: Rows of sent spans that wait to become exemplars.
_SENT_ROWS = 2048
#: Tables of servers that are polled: a row without a value means that there is none now.
_POLLED = {"clock_daemon", "queue_lag"}
OVERFLOW: tuple[tuple[str, Value], ...] = (("otel.metric.overflow", True),)


class MetricStore:
    """Implements agent.contracts.Sink. ``offer`` and ``observe`` belong to the agent's thread, ``collect`` to any.

    max_series: of one metric. max_samples: of all together on the page, None for no bound. full: all labels and
    buckets.
    """

    name = "metrics"

    def __init__(
        self, max_series: int = MAX_SERIES, max_samples: int | None = MAX_SAMPLES, *, full: bool = False
    ) -> None:
        self.metrics = registry(full=full)
        self._by_table: dict[str, list[Metric]] = {}
        for m in self.metrics:
            self._by_table.setdefault(m.table, []).append(m)
        self._lock = threading.Lock()
        self._waiting: deque[Batch] = deque()
        self._waiting_bytes = 0
        self._sent: deque[SentSpans] = deque()
        self._series: dict[Metric, dict[bytes, MetricSeries]] = {m: {} for m in self.metrics}
        self._room = Room([m for m in self.metrics if m.table], max_series, max_samples)
        self._distinct: dict[str, OrderedDict[bytes, None]] = {
            m.name: OrderedDict() for m in self.metrics if m.distinct
        }
        self._totals = {m: Totals() for m in self.metrics if m.absolute}
        self._newest: dict[str, int] = {}
        self._left_out = self.overflowed = 0
        self._swept_ns = 0
        self._began_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._observed: dict[Metric, dict[Attributes, MetricSeries]] = {m: {} for m in self._by_table[""]}
        self._start()

    def offer(self, batch: Batch) -> None:
        """Takes a batch; tables without a metric are ignored."""
        batch = ended(batch)
        if batch.table not in self._by_table or not len(batch.rows):
            return
        with self._lock:
            self._waiting.append(batch)
            self._waiting_bytes += batch.rows.nbytes
            if self._waiting_bytes > FOLD_BYTES:
                self._fold()

    def exemplify(
        self, table: str, rows: np.ndarray, spans: Sequence[tuple[bytes, bytes]], wall_ns: Sequence[int]
    ) -> None:
        """Makes these rows' spans exemplars of the histograms that count the rows, at the next ``collect``. spans:
        (trace, span) ids. wall_ns: their ends, Unix time. May be called from any thread.
        """
        if not any(m.exemplified_by == table for m in self.metrics):
            return
        with self._lock:
            self._sent.append(SentSpans(table, rows, spans, wall_ns, time.clock_gettime_ns(time.CLOCK_BOOTTIME)))
            while len(self._sent) > 1 and sum(len(sent.rows) for sent in self._sent) > _SENT_ROWS:
                self._sent.popleft()

    def observe(self, name: str, values: Iterable[tuple[Attributes, float]], now_ns: int) -> None:
        """Sets all values of a metric without a table, for the agent's own metrics. Values that are not given are
        removed.
        """
        metric = next(m for m in self._by_table[""] if m.name == name)
        with self._lock:
            before, now = self._observed[metric], {}
            for attributes, value in values:
                series = before.get(attributes) or MetricSeries(attributes, self._began_ns, now_ns)
                if metric.instrument == "counter" and value < series.value:
                    series = MetricSeries(attributes, now_ns, now_ns)  # another process has the role: it counts from 0
                series.value, series.seen_ns = value, now_ns
                now[attributes] = series
            self._observed[metric] = now

    def collect(self) -> list[tuple[Metric, list[MetricSeries]]]:
        """A copy of every metric that has series, including all earlier batches."""
        with self._lock:
            self._fold()
            for metric in self.metrics if self._sent else ():
                for sent in self._sent:
                    if metric.exemplified_by == sent.table:
                        fold.add_exemplars(metric, sent, self._series[metric])
            self._sent.clear()
            shown: dict[str, tuple[Metric, list[MetricSeries]]] = {}
            for m in self.metrics:
                _, series = shown.setdefault(m.name, (m, []))
                held = self._observed[m].values() if not m.table else self._series[m].values()
                series += [s.copy() for s in held if self._is_live(m, s)]
            return [(m, s) for m, s in shown.values() if s]

    def losses(self) -> dict[str, int]:
        """``series_limit``: running totals removed for lack of room, each counted with its next increment. Gauges that
        are left out do not count: no record is lost, and there is one per poll.
        """
        return {"series_limit": self._left_out}

    @property
    def samples(self) -> int:
        """Samples of the events' metrics on the page."""
        return self._room.samples

    def close(self) -> None:
        """Nothing to release."""

    def _start(self) -> None:
        """Creates the series that start with 0."""
        for metric in (m for m in self.metrics if m.bounded):
            keys = fold.starting_keys(metric)
            for at in range(len(keys)):
                series = fold.begin(metric, fold.attributes(metric, keys[at : at + 1]), self._began_ns)
                series.fixed = True
                self._series[metric][keys[at : at + 1].tobytes()] = series
            self._room.set(metric, len(keys))

    def _is_live(self, metric: Metric, series: MetricSeries) -> bool:
        if metric.instrument != "gauge" or not metric.table:
            return True
        return series.ready and self._newest[metric.table] - series.seen_ns < GAUGE_TTL_NS

    def _fold(self) -> None:
        gathered: dict[str, list[np.ndarray]] = {}
        while self._waiting:
            batch = self._waiting.popleft()
            gathered.setdefault(batch.table, []).append(batch.rows)
        self._waiting_bytes = 0
        for table, pieces in gathered.items():
            rows = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
            self._newest[table] = max(self._newest.get(table, 0), int(rows["t_ns"].max()))
            for metric in self._by_table[table]:
                self._fold_metric(metric, rows)

    def _fold_metric(self, metric: Metric, offered: np.ndarray) -> None:
        rows = self._wanted(metric, offered)
        if len(rows):
            self._add(metric, rows)
        if metric.instrument == "gauge" and metric.table in _POLLED:
            self._forget(metric, offered)

    def _forget(self, metric: Metric, offered: np.ndarray) -> None:
        """Hides a gauge whose newest row says that its value is unknown (its daemon or broker is gone)."""
        rows = fold.of(metric, offered)
        rows = rows[fold.is_null(metric, rows)]
        if not len(rows):
            return
        keys, inverse = fold.group(metric, rows)
        for at, (_, newest) in enumerate(fold.ends(rows, inverse, len(keys))):
            series = self._series[metric].get(keys[at : at + 1].tobytes())
            if series is not None and rows["t_ns"][newest] > series.seen_ns:
                series.ready = False

    def _add(self, metric: Metric, rows: np.ndarray) -> None:
        keys, inverse = fold.group(metric, rows)
        if metric.beside:
            keys = fold.with_beside(metric, keys, self._series[metric])
        series = self._lookup(metric, keys, int(rows["t_ns"].min()))
        ends = np.full(len(series), NULL_I64)
        np.maximum.at(ends, inverse, rows["t_ns"])
        for s, end in zip(series, ends.tolist(), strict=True):
            s.seen_ns = max(s.seen_ns, end)
        if metric.instrument == "histogram":
            fold.add_histograms(metric, rows, inverse, series)
        elif metric.instrument == "gauge":
            fold.set_gauges(metric, rows, inverse, series)
        else:
            for s, total in zip(
                series, np.bincount(inverse, self._weights(metric, rows), len(series)).tolist(), strict=True
            ):
                s.value += total

    def _weights(self, metric: Metric, rows: np.ndarray) -> np.ndarray:
        """The increment of each row."""
        if metric.absolute:
            increments, forgotten = self._totals[metric].increments(metric, rows)
            self._left_out += forgotten
            return increments
        return fold.numbers(rows, metric.value) if metric.value else np.ones(len(rows))

    def _wanted(self, metric: Metric, rows: np.ndarray) -> np.ndarray:
        rows = fold.of(metric, rows)
        if (metric.value and metric.value != "hist") or (metric.values and metric.instrument == "gauge"):
            rows = rows[~fold.is_null(metric, rows)]
        if metric.distinct and len(rows):
            seen = self._distinct[metric.name]
            keys, inverse = fold.group(metric, rows, (metric.distinct,))
            raws = [keys[at : at + 1].tobytes() for at in range(len(keys))]
            fresh = [
                first
                for raw, (first, _) in zip(raws, fold.ends(rows, inverse, len(keys)), strict=True)
                if raw not in seen
            ]
            seen.update((raw, None) for raw in raws)
            while len(seen) > _DISTINCT_KEPT:
                seen.popitem(last=False)
            rows = rows[sorted(fresh)]
        return rows

    def _lookup(self, metric: Metric, keys: np.ndarray, t_ns: int) -> list[MetricSeries]:
        raws = [keys[at : at + 1].tobytes() for at in range(len(keys))]
        new = [raw for raw in raws if raw not in self._series[metric]]
        if metric.columns and new and not self._room.has(metric, len(new)):
            self._make_room(metric)
        known = self._series[metric]
        out = []
        for at, raw in enumerate(raws):
            series = known.get(raw)
            if series is None and (not metric.columns or self._room.take(metric)):
                series = known[raw] = fold.begin(metric, fold.attributes(metric, keys[at : at + 1]), t_ns)
            elif series is None:
                self.overflowed += 1
                if metric.instrument != "gauge":
                    series = known.setdefault(b"", fold.begin(metric, OVERFLOW, t_ns))
                else:
                    series = fold.begin(metric, OVERFLOW, t_ns)  # takes the rows of series without room
            out.append(series)
        return out

    def _make_room(self, wanting: Metric) -> None:
        """Removes series not seen for long. Recent ones stay, so that the count of a rare event does not start again at
        each event.

        Removes those of the metric that needs room; if all metrics together have none, those of the others too, at
        intervals.
        """
        now_ns = max(self._newest.values())
        others = self._room.full(wanting) and now_ns - self._swept_ns >= GAUGE_TTL_NS
        self._swept_ns = now_ns if others else self._swept_ns
        for metric in (m for m in self.metrics if m.table) if others else (wanting,):
            newest = now_ns if others and metric is not wanting else self._newest[wanting.table]
            oldest = newest - (GAUGE_TTL_NS if metric.instrument == "gauge" else SERIES_TTL_NS)
            kept = {raw: s for raw, s in self._series[metric].items() if s.fixed or s.seen_ns > oldest}
            self._series[metric] = kept
            self._room.set(metric, len(kept) - (b"" in kept))
