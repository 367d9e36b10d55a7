"""Whether a consumer group keeps up, by rules after Burrow's
(github.com/linkedin/Burrow/wiki/Consumer-Lag-Evaluation-Rules). Pure: time comes from the samples.

There are no absolute thresholds, since a lag of 10,000 may be harmless and a lag of 3 a standstill. What counts is
whether the group makes progress.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

WINDOW_NS = 10_000_000_000


class Sample(NamedTuple):
    """One poll: ``added`` and ``acked`` are running totals (any origin), ``position`` is any mark of how far the group
    read; None if unknown.
    """

    t_ns: int
    lag: int | None
    pending: int
    consumers: int | None
    position: Hashable
    acked: int | None
    added: int | None


@dataclass
class Progress:
    """The last ``window_ns`` of a group's samples."""

    window_ns: int = WINDOW_NS
    samples: deque[Sample] = field(default_factory=deque)

    def add(self, sample: Sample) -> None:
        """Samples must come in time order. One sample as old as the window is kept, so that the window can be full."""
        self.samples.append(sample)
        while len(self.samples) > 2 and self.samples[1].t_ns <= sample.t_ns - self.window_ns:
            self.samples.popleft()

    def per_second(self, name: str) -> float:
        """Rate of ``added`` or ``acked`` between the last two polls; NaN when unknown."""
        if len(self.samples) < 2:
            return float("nan")
        before, now = self.samples[-2], self.samples[-1]
        a, b = getattr(before, name), getattr(now, name)
        if a is None or b is None or b < a or now.t_ns <= before.t_ns:
            return float("nan")
        return float((b - a) * 1e9 / (now.t_ns - before.t_ns))

    def status(self) -> tuple[str, str]:
        """``ok``, ``lagging`` or ``stuck``, and why."""
        first, last = self.samples[0], self.samples[-1]
        seconds = (last.t_ns - first.t_ns) / 1e9
        if seconds * 1e9 < self.window_ns * 0.9:
            return "ok", ""
        waits = all(s.lag is None or s.lag > 0 for s in self.samples) and last.lag is not None
        idle = first.position is not None and all(s.position == first.position for s in self.samples)
        unacked = first.acked is not None and first.acked == last.acked
        if waits and idle:
            who = "no consumer" if last.consumers == 0 else "nothing read"
            return "stuck", f"{last.lag} undelivered, {who} for {seconds:.0f} s"
        if unacked and last.pending > first.pending:
            return (
                "stuck",
                (
                    f"{last.pending} pending, grew by {last.pending - first.pending}, none acknowledged for"
                    f" {seconds:.0f} s"
                ),
            )
        lags = [s.lag for s in self.samples if s.lag is not None]
        if len(lags) > 2 and lags[-1] > lags[0] and all(a <= b for a, b in pairwise(lags)):
            return "lagging", f"lag grew from {lags[0]} to {lags[-1]} in {seconds:.0f} s"
        return "ok", ""
