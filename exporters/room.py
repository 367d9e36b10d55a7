"""Bounds the number of series: of one metric, and of all metrics together as samples on the Prometheus page."""

from __future__ import annotations

from collections.abc import Sequence

from exporters.metric import Metric

#: The part of the page for all histograms: one has about twenty samples, and gauges and counters must find room beside
#: many.
_WIDE = 0.7
#: This part of the histograms' room, and of the rest, is reserved evenly: a flood of one metric's labels leaves every
#: other metric some series.
_RESERVED = 0.4


class Room:
    """Counts series; the overflow series, one per metric, are counted from the start.

    metrics: those of events. max_series: of one metric, including its overflow series. max_samples: of all, or None.
    """

    def __init__(self, metrics: Sequence[Metric], max_series: int, max_samples: int | None) -> None:
        self._most = max_series - 1
        self._series = dict.fromkeys(metrics, 0)
        self._bound = (
            None
            if max_samples is None
            else max_samples - sum(m.samples for m in metrics if m.columns and m.instrument != "gauge")
        )
        bound = self._bound or 0
        self._most_wide = int(bound * _WIDE)
        wide = sum(_wide(m) for m in metrics)
        self._shares = {
            True: int(self._most_wide * _RESERVED) // max(wide, 1),
            False: int((bound - self._most_wide) * _RESERVED) // max(len(metrics) - wide, 1),
        }
        #: By whether they are histograms.
        self._reserved = {True: wide * self._shares[True], False: (len(metrics) - wide) * self._shares[False]}

    @property
    def samples(self) -> int:
        return sum(m.samples * n for m, n in self._series.items())

    def full(self, metric: Metric) -> bool:
        """Whether the page has no room for one more series of this kind."""
        return not self._fits(metric, metric.samples)

    def has(self, metric: Metric, more: int) -> bool:
        """Whether there is room for so many more series."""
        return self._series[metric] + more <= self._most and self._fits(metric, self._growth(metric, more))

    def take(self, metric: Metric) -> bool:
        """Takes room for one more series; False if there is none."""
        if not self.has(metric, 1):
            return False
        self.set(metric, self._series[metric] + 1)
        return True

    def set(self, metric: Metric, series: int) -> None:
        self._reserved[_wide(metric)] += self._growth(metric, series - self._series[metric])
        self._series[metric] = series

    def _fits(self, metric: Metric, samples: int) -> bool:
        if self._bound is None or samples <= 0:
            return True
        within = not _wide(metric) or self._reserved[True] + samples <= self._most_wide
        return within and sum(self._reserved.values()) + samples <= self._bound

    def _growth(self, metric: Metric, more: int) -> int:
        """The growth of the used room: each metric's samples, or its reserved share if it has fewer."""
        now, share = self._series[metric], self._shares[_wide(metric)]
        return max((now + more) * metric.samples, share) - max(now * metric.samples, share)


def _wide(metric: Metric) -> bool:
    return metric.samples > 1
