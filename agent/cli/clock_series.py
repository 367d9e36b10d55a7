"""The plot data of one boot's clock history, reduced to a plot's resolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

#: The time is cut into this many pieces; the extremes of each are drawn.
PIECES = 1_000
#: Jumps and unwatched times that a plot names.
NAMED = 6


class WallStep(NamedTuple):
    """A jump of the wall clock: time (CLOCK_BOOTTIME ns), size, actor as text (empty if not queried), and the wall time
    just after it.
    """

    t_ns: int
    size_ns: int
    actor: str
    wall_ns: int


class Timed(Protocol):
    """Data drawn over time. from_ns, to_ns: CLOCK_BOOTTIME ns. wall_ns: added to such a time gives the wall time."""

    @property
    def from_ns(self) -> int: ...
    @property
    def to_ns(self) -> int: ...
    @property
    def wall_ns(self) -> int: ...
    @property
    def steps(self) -> Sequence[WallStep]: ...


@dataclass(frozen=True)
class ClockSeries:
    """The plot data of one boot. Times are CLOCK_BOOTTIME ns, increasing.

    start_ns, moved_ns, err_ns (k,): the segments' starts, their offsets from the first segment's, and error bounds.
    jumps: number of jumps. steps: the jumps to draw, which include the NAMED largest. wall_ns: added to a time gives
    the wall time by the last offset. unwatched: (from, to) without an agent.
    """

    host: str
    from_ns: int
    to_ns: int
    wall_ns: int
    start_ns: np.ndarray
    moved_ns: np.ndarray
    err_ns: np.ndarray
    steps: Sequence[WallStep]
    jumps: int
    unwatched: Sequence[tuple[int, int]] = ()

    @property
    def blank(self) -> list[tuple[int, int]]:
        """Unwatched times that are visible in a plot; at most PIECES."""
        least = (self.to_ns - self.from_ns) // PIECES
        return [(begin, end) for begin, end in self.unwatched if end - begin > least]

    def corners(self) -> list[list[tuple[int, int, int]]]:
        """The points (t_ns, moved_ns, err_ns) of the line: both ends of each segment, one list per watched interval."""
        ends = [*self.start_ns[1:].tolist(), self.to_ns]
        edges = [self.from_ns, *(t for span in self.blank for t in span), self.to_ns]
        out = []
        for begin, last in zip(edges[::2], edges[1::2], strict=True):
            line: list[tuple[int, int, int]] = []
            for start, end, moved, err in zip(
                self.start_ns.tolist(), ends, self.moved_ns.tolist(), self.err_ns.tolist(), strict=True
            ):
                if start <= last and end >= begin and (end > begin or begin == last):
                    line += [(max(start, begin), moved, err), (min(end, last), moved, err)]
            out.append(line)
        return [line for line in out if line]

    def reach(self, least: float) -> tuple[float, float]:
        """The range of the offset, including its error."""
        return extent([m + sign * e for line in self.corners() for _, m, e in line for sign in (-1, 1)], least)


def extent(values: Sequence[float], least: float) -> tuple[float, float]:
    """A range that holds the values with some margin, at least ``least`` wide."""
    low, high = min(values), max(values)
    room = max((high - low) * 0.1, (least - (high - low)) / 2)
    return low - room, high + room


def furthest(t_ns: np.ndarray, *values: np.ndarray) -> np.ndarray:
    """Indices, increasing, of the points to draw, for values at increasing times, all (n,). Few points are all drawn.
    Otherwise each piece keeps its first and last point and the minimum and maximum of each value.
    """
    if len(t_ns) <= 2 * PIECES:
        return np.arange(len(t_ns))
    piece = (t_ns - t_ns[0]) // ((t_ns[-1] - t_ns[0]) // PIECES + 1)
    first = np.flatnonzero(np.append(True, np.diff(piece) != 0))
    last = np.append(first[1:], len(t_ns)) - 1
    kept = [first, last]
    for value in values:
        order = np.lexsort((value, piece))  # sorts within each piece by value; the order of pieces stays
        kept += [order[first], order[last]]
    return np.unique(np.concatenate(kept))


def unwatched(t_ns: np.ndarray, longest_ns: int) -> list[tuple[int, int]]:
    """The gaps longer than ``longest_ns`` between samples at the times (n,)."""
    at = np.flatnonzero(np.diff(t_ns) > longest_ns)
    return list(zip(t_ns[at].tolist(), t_ns[at + 1].tolist(), strict=True))
