"""Bounds of the number of ready messages of a queue, from statistics that are seconds old and from counts of channels.
Pure.

A statistic was made at an unknown time between two polls. Ready messages less the published ones plus the delivered
ones are a constant, as long as channels count all of them. Each statistic bounds this constant by the counts of the
polls around it, and all of them together bound it closer. The constant and the counts of now bound what is ready now.
If two statistics contradict each other, messages came or went that no channel counted: then there are no bounds until
some statistics in a row agree.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

#: A queue that made no statistics for so long, without a count of its channels, has made them after the last count:
#: the interval is 5 s by default.
STATISTICS_NS = 6_000_000_000
#: Statistics in a row that must agree after a contradiction.
AGREE = 2
#: Part of the messages of the polls beside a statistic that may have been counted on its other side: an answer is not
#: of one instant, and a queue gets a message after the channel has counted it.
_BESIDE = 0.25


class ChannelTotals(NamedTuple):
    """Running totals of channels: messages that were published, and delivered for the first time."""

    published: int = 0
    delivered: int = 0


@dataclass
class ReadyBounds:
    """Of one queue. It takes a statistic one poll later, since the counts after it are needed, too."""

    _polls: deque[ChannelTotals] = field(default_factory=lambda: deque(maxlen=4))
    _statistic: tuple[int, int] | None = (
        None  # (ready messages, when it was first seen) of the last poll, not yet taken
    )
    _last: tuple[int, int, ChannelTotals] | None = None  # the last one: ready messages, when, counts as of then
    _base: tuple[int, int] | None = None  # bounds of the constant
    _agreed: int = 0

    def poll(self, counted: ChannelTotals, ready: int | None, now_ns: int) -> None:
        """ready: of a statistic that was not there at the poll before, else None."""
        self._polls.append(counted)
        if self._statistic is not None and len(self._polls) == self._polls.maxlen:
            self._take(self._statistic[0])
        self._statistic = None if ready is None else (ready, now_ns)
        if ready is not None:
            self._last = ready, now_ns, counted
        elif self._last is not None and self._last[2] == counted and now_ns - self._last[1] > STATISTICS_NS:
            constant = self._last[0] + counted.delivered - counted.published
            self._base, self._agreed = (constant, constant), AGREE

    def lost(self, counted: ChannelTotals, now_ns: int) -> None:
        """Messages before now may not be counted."""
        self._polls.clear()
        self._statistic, self._base, self._agreed = None, None, 0
        if self._last is not None:
            self._last = self._last[0], now_ns, counted

    def now(self) -> tuple[int, int] | None:
        """The least and the largest number of ready messages; None if it is unknown."""
        if self._base is None or self._agreed < AGREE:
            return None
        flow = self._polls[-1].published - self._polls[-1].delivered
        least, most = (max(0, one + flow) for one in self._base)
        return least, most

    def _take(self, ready: int) -> None:
        """The statistic was made between the second and the third of the last four polls, or just beside them."""
        (published, delivered) = (
            _bounds([getattr(one, name) for one in self._polls]) for name in ChannelTotals._fields
        )
        self._narrow(ready + delivered[0] - published[1], ready + delivered[1] - published[0])

    def _narrow(self, least: int, most: int) -> None:
        if self._base is not None:
            both = max(least, self._base[0]), min(most, self._base[1])
            if both[0] <= both[1]:
                self._base, self._agreed = both, self._agreed + 1
                return
        self._base, self._agreed = (least, most), 1


def _bounds(totals: list[int]) -> tuple[int, int]:
    """What the total was between the second and the third poll of four."""
    before, between, after = (b - a for a, b in pairwise(totals))
    early = min(before, max(0, before - between) + int(before * _BESIDE) + (before > 0))
    late = min(after, max(0, after - between) + int(after * _BESIDE) + (after > 0))
    return totals[1] - early, totals[2] + late
