"""Reads this host's clocks against each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple


def boot_ns() -> int:
    """CLOCK_BOOTTIME now."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Apart(NamedTuple):
    """Two clocks at one instant, ns. before_ns, after_ns: the first clock around the reading of the other. offset_ns:
    the other minus the first.
    """

    before_ns: int
    after_ns: int
    offset_ns: int

    @property
    def err_ns(self) -> int:
        """Bound of ``offset_ns``: half of the reading's duration."""
        return (self.after_ns - self.before_ns) // 2 + 1


def apart(
    first: int, others: Sequence[int], close_ns: int = 0, read: Callable[[int], int] = time.clock_gettime_ns
) -> list[Apart]:
    """The offset of each of ``others`` from ``first`` (clock ids): the best of five readings, since a thread may lose
    its CPU during one.

    close_ns: a round in which each reading took less than this is the last. Raises OSError if a clock cannot be read.
    """
    order = [first, *(clock for other in others for clock in (other, first))]
    best = [Apart(0, 1 << 62, 0)] * len(others)
    for _ in range(5):
        m, widest = list(map(read, order)), 0  # nothing else between two readings: it would widen the bound
        for i in range(len(others)):
            before, there, after = m[2 * i : 2 * i + 3]
            width = after - before
            if width < best[i].after_ns - best[i].before_ns:
                best[i] = Apart(before, after, there - before - width // 2)
            widest = max(widest, width)
        if widest < close_ns:
            break
    return best
