"""Metric series as an OTLP metrics request: cumulative since a series began, or the delta since the last export."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    AGGREGATION_TEMPORALITY_DELTA,
    Exemplar,
    HistogramDataPoint,
    NumberDataPoint,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric as MetricMessage

from exporters.fold import Attributes, MetricSeries
from exporters.metric import Metric
from exporters.protobuf_pieces import key_values

ToWall = Callable[[np.ndarray], np.ndarray]


@dataclass
class PointEncoder:
    """Serialised metrics. With delta it remembers what was sent, so ``committed`` must follow each finished export.

    start_ns: CLOCK_BOOTTIME at which the first interval begins.
    """

    temporality: str
    to_wall: ToWall
    start_ns: int
    _sent: dict[tuple[str, Attributes], MetricSeries] = field(default_factory=dict)
    _next: dict[tuple[str, Attributes], MetricSeries] = field(default_factory=dict)
    _begins: dict[tuple[str, Attributes], tuple[int, int]] = field(default_factory=dict)
    _sent_wall: int = 0
    _next_at: tuple[int, int] = (0, 0)

    def encode(self, collected: list[tuple[Metric, list[MetricSeries]]], now_ns: int) -> tuple[list[bytes], int]:
        """(serialised metrics, number of points) at ``now_ns``, CLOCK_BOOTTIME."""
        now_wall = int(self.to_wall(np.array([now_ns]))[0])
        # Intervals follow one another without a gap. If the wall clock went back, this one keeps its true length.
        start = self._sent_wall if 0 < self._sent_wall < now_wall else now_wall - (now_ns - self.start_ns)
        delta, (last_ns, last_wall) = self.temporality == "delta", self._next_at
        begins: dict[tuple[str, Attributes], tuple[int, int]] = {}
        out, points = [], 0
        self._next, self._next_at = {}, (now_ns, now_wall)
        for metric, series in collected:
            message = MetricMessage(name=metric.name, unit=metric.unit, description=metric.description)
            for s in series:
                key, since = (metric.name, s.attributes), start
                before = self._sent.get(key) if delta else None
                if before and before.since_ns != s.since_ns:
                    before = None  # of an earlier series of that name, which was removed
                if not delta and metric.instrument != "gauge":
                    since = self._begin(self._begins.get(key), s, last_wall, now_wall)
                    begins[key] = s.since_ns, since
                points += _add(message, metric, s, before, (since, now_wall), delta, last_ns)
                if delta and metric.instrument != "gauge":
                    self._next[key] = s
            if message.WhichOneof("data"):
                out.append(message.SerializeToString())
        self._begins = begins
        return out, points

    def _begin(self, known: tuple[int, int] | None, s: MetricSeries, last_wall: int, now_wall: int) -> int:
        """A cumulative series' start, converted once, since a moving start would mean a reset. It moves if the clock is
        set to before it.

        A new series starts after all points of the last export, which may have had an earlier series of its name.
        """
        same = known is not None and known[0] == s.since_ns
        if known and same and known[1] <= now_wall:
            return known[1]
        begin = int(self.to_wall(np.array([s.since_ns]))[0])
        return min(begin if same else max(begin, last_wall), now_wall)

    def committed(self) -> None:
        """The last ``encode`` was accepted or given up: the next delta starts at its end."""
        self._sent = self._next
        self.start_ns, self._sent_wall = self._next_at


def point_count(metrics: Iterable[bytes]) -> int:
    """Number of points in serialised metrics."""
    return sum(len(_data(MetricMessage.FromString(metric)).data_points) for metric in metrics)


def halves(metric: bytes) -> list[bytes]:
    """A serialised metric as two, each with half of the points; unchanged if it has one point."""
    whole = MetricMessage.FromString(metric)
    points = list(_data(whole).data_points)
    if len(points) < 2:
        return [metric]
    out = []
    for half in (points[: len(points) // 2], points[len(points) // 2 :]):
        del _data(whole).data_points[:]
        _data(whole).data_points.extend(half)
        out.append(whole.SerializeToString())
    return out


def _data(metric: MetricMessage) -> Any:
    return getattr(metric, metric.WhichOneof("data") or "")


def _add(
    message: MetricMessage,
    metric: Metric,
    s: MetricSeries,
    before: MetricSeries | None,
    wall: tuple[int, int],
    delta: bool,
    last_ns: int,
) -> int:
    """The number of points that were added. last_ns: later exemplars are new, CLOCK_BOOTTIME."""
    temporality = AGGREGATION_TEMPORALITY_DELTA if delta else AGGREGATION_TEMPORALITY_CUMULATIVE
    attributes = key_values(s.attributes)
    if metric.instrument == "gauge":
        message.gauge.data_points.append(_number(metric, s.value, attributes, (0, wall[1])))
        return 1
    if metric.instrument == "counter":
        value = s.value - (before.value if before else 0)
        if delta and not value:
            return 0
        message.sum.aggregation_temporality, message.sum.is_monotonic = temporality, True
        message.sum.data_points.append(_number(metric, value, attributes, wall))
        return 1
    count = s.count - (before.count if before else 0)
    if delta and not count:
        return 0
    buckets = s.buckets - before.buckets if before else s.buckets
    below = buckets.cumsum()[[power - 1 for power in metric.powers]]
    point = HistogramDataPoint(
        attributes=attributes,
        start_time_unix_nano=wall[0],
        time_unix_nano=wall[1],
        count=count,
        sum=metric.shown(s.value - (before.value if before else 0)),
        explicit_bounds=metric.upper_bounds,
        bucket_counts=np.diff(below, prepend=0, append=count).tolist(),
        exemplars=[
            Exemplar(
                time_unix_nano=one.wall_ns,
                as_double=metric.shown(one.value),
                trace_id=one.trace_id,
                span_id=one.span_id,
            )
            for one in s.exemplars.values()
            if one.seen_ns > last_ns
        ],
    )
    if before is None and s.low is not None:
        point.min = metric.shown(s.low)
    if before is None and s.high is not None:
        point.max = metric.shown(s.high)
    message.histogram.aggregation_temporality = temporality
    message.histogram.data_points.append(point)
    return 1


def _number(metric: Metric, value: float, attributes: list[KeyValue], wall: tuple[int, int]) -> NumberDataPoint:
    point = NumberDataPoint(attributes=attributes, start_time_unix_nano=wall[0], time_unix_nano=wall[1])
    if metric.integral:
        point.as_int = int(value)
    else:
        point.as_double = metric.shown(value)
    return point
