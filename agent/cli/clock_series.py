"""What a drawing of the clock's history shows of one boot: no more than a picture has room for, however many steps
there were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

#: The time is cut into so many pieces; of each, what reaches furthest is drawn.
PIECES = 1_000
#: Jumps, and times without an agent, that a drawing names.
NAMED = 6


class WallStep(NamedTuple):
    """A jump of the wall clock: when (CLOCK_BOOTTIME ns), how far, who, in words (empty where nobody asks), and the
    wall time just after it.
    """

    t_ns: int
    size_ns: int
    actor: str
    wall_ns: int


class Timed(Protocol):
    """What is drawn over time. from_ns, to_ns: CLOCK_BOOTTIME ns; wall_ns: what to add to one to get a wall time."""

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
    """What is drawn, of one boot. Times CLOCK_BOOTTIME ns, increasing.

    start_ns, moved_ns, err_ns (k,): the segments, and how far from the first one's offset each lies, with its error
    bound.
    jumps: how many there were; steps: those of them that are drawn, among them the NAMED largest.
    wall_ns: what to add to a time to get the wall time it has by the last offset. unwatched: (from, to) in which no
    agent looked.
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
        """Times in which no agent looked, as far as they can be seen in a drawing: so there are PIECES at most."""
        least = (self.to_ns - self.from_ns) // PIECES
        return [(begin, end) for begin, end in self.unwatched if end - begin > least]

    def corners(self) -> list[list[tuple[int, int, int]]]:
        """(t_ns, moved_ns, err_ns) along the line: both ends of each segment, a list for each time that was watched."""
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
        """The range of the offset with its error."""
        return extent([m + sign * e for line in self.corners() for _, m, e in line for sign in (-1, 1)], least)


def extent(values: Sequence[float], least: float) -> tuple[float, float]:
    """A range that holds the values with some room, at least ``least`` wide."""
    low, high = min(values), max(values)
    room = max((high - low) * 0.1, (least - (high - low)) / 2)
    return low - room, high + room


def furthest(t_ns: np.ndarray, *values: np.ndarray, pieces: int = PIECES) -> np.ndarray:
    """Indices, increasing, of what to draw of values at increasing times, all (n,): all where they are few, else of
    each piece of the time its first and last and where each value is least and largest.
    """
    if len(t_ns) <= 2 * pieces:
        return np.arange(len(t_ns))
    piece = (t_ns - t_ns[0]) // ((t_ns[-1] - t_ns[0]) // pieces + 1)
    first = np.flatnonzero(np.append(True, np.diff(piece) != 0))
    last = np.append(first[1:], len(t_ns)) - 1
    kept = [first, last]
    for value in values:
        order = np.lexsort((value, piece))  # within each piece by size; the pieces lie as before
        kept += [order[first], order[last]]
    return np.unique(np.concatenate(kept))


def unwatched(t_ns: np.ndarray, longest_ns: int) -> list[tuple[int, int]]:
    """Where samples, taken at the times (n,), lie further apart than an agent takes them."""
    at = np.flatnonzero(np.diff(t_ns) > longest_ns)
    return list(zip(t_ns[at].tolist(), t_ns[at + 1].tolist(), strict=True))
