"""How many series there may be: of one metric, and of all metrics together as samples on the Prometheus page."""

from __future__ import annotations

from collections.abc import Sequence

from exporters.metric import Metric

#: This part of the page is shared out beforehand, evenly: a flood of one metric's labels leaves every other some series.
_RESERVED = 0.4


class Room:
    """Counts series; the overflow series, one a metric, are accounted for from the start.

    max_series: of one metric, its overflow series included. max_samples: of all, or None.
    """

    def __init__(self, metrics: Sequence[Metric], max_series: int, max_samples: int | None) -> None:
        self._most = max_series - 1
        self._series = dict.fromkeys(metrics, 0)
        self._bound = (
            None
            if max_samples is None
            else max_samples - sum(m.samples for m in metrics if m.table and m.columns and m.instrument != "gauge")
        )
        self._share = 0 if self._bound is None else int(self._bound * _RESERVED) // len(metrics)
        self._spoken_for = self._share * len(metrics)

    @property
    def samples(self) -> int:
        return sum(m.samples * n for m, n in self._series.items())

    @property
    def full(self) -> bool:
        """Whether it is the page that has no room for one more series of any kind."""
        return self._bound is not None and self._spoken_for + max(m.samples for m in self._series) > self._bound

    def has(self, metric: Metric, more: int) -> bool:
        """Whether so many more series would find a place."""
        if self._series[metric] + more > self._most:
            return False
        return self._bound is None or self._grown(metric, more) <= self._bound

    def take(self, metric: Metric) -> bool:
        """A place for one more series; False where there is none."""
        if not self.has(metric, 1):
            return False
        self.set(metric, self._series[metric] + 1)
        return True

    def set(self, metric: Metric, series: int) -> None:
        self._spoken_for = self._grown(metric, series - self._series[metric])
        self._series[metric] = series

    def _grown(self, metric: Metric, more: int) -> int:
        """What would be spoken for: each metric's samples, or its share where it has fewer."""
        now = self._series[metric]
        return (
            self._spoken_for + max((now + more) * metric.samples, self._share) - max(now * metric.samples, self._share)
        )
