"""Fast look-ups: the piece of a sorted line that a number lies in, and the intervals that cover each piece. Pure."""

from __future__ import annotations

from functools import cached_property

import numpy as np

_CELLS = 1 << 16


class Pieces:
    """Pieces of a line: piece i goes from edges[i] to edges[i + 1]. Values before all edges belong to the
    first piece.
    """

    def __init__(self, edges: np.ndarray) -> None:
        self.edges = edges

    @cached_property
    def _grid(self) -> tuple[int, np.ndarray, np.ndarray]:
        """A grid of equal cells from edges[1] on: their width as a shift, the piece at each cell's start, and whether
        an edge lies inside the cell.

        It replaces a binary search, which is slow for unsorted times. The first cell stands for everything before
        edges[1].
        """
        first, last = int(self.edges[1]), int(self.edges[-1])
        shift = max((last - first).bit_length() - min(_CELLS, 16 * len(self.edges)).bit_length() + 1, 0)
        starts = first + (np.arange((last - first >> shift) + 2) << shift)
        at = np.searchsorted(self.edges, starts[:-1], "right") - 1
        inside = at != np.searchsorted(self.edges, starts[1:] - 1, "right") - 1
        return shift, np.append(0, at).astype(np.int32), np.append(False, inside)

    def find(self, values: np.ndarray) -> int | np.ndarray:
        """The piece of each value, shape (n,), n > 0. Returns a single number if all values are in one piece, as in
        most batches.
        """
        low, high = np.searchsorted(self.edges[1:], (values.min(), values.max()), "right")
        if low == high:
            return int(low)
        shift, at, inside = self._grid
        cell = np.clip(values, self.edges[1] - 1, self.edges[-1])
        cell -= self.edges[1]
        cell >>= shift
        cell += 1
        found: np.ndarray = at[cell]
        unsure = np.flatnonzero(inside[cell])
        if len(unsure):
            found[unsure] = np.searchsorted(self.edges, values[unsure], "right") - 1
        return found


def put(column: np.ndarray, at: int | np.ndarray, out: np.ndarray) -> None:
    """``out[:] = column[at]``."""
    if isinstance(at, int):
        out.fill(column[at])
    else:
        np.take(column, at, out=out, mode="clip")  # never clips; the mode is faster than raise


def covering(begin: np.ndarray, end: np.ndarray, pieces: int) -> tuple[np.ndarray, np.ndarray]:
    """(lowest, highest) number of the intervals [begin, end) that cover each of ``pieces`` pieces, -1 if none; i4
    (pieces,).
    """
    n = len(begin)
    lowest = _lowest(begin, end, pieces, np.arange(n, dtype=np.int32))
    highest = n - 1 - _lowest(begin, end, pieces, np.arange(n - 1, -1, -1, dtype=np.int32))
    return np.where(lowest == n, -1, lowest).astype(np.int32), highest.astype(np.int32)


def _lowest(begin: np.ndarray, end: np.ndarray, pieces: int, number: np.ndarray) -> np.ndarray:
    """The lowest ``number`` of the intervals that cover each piece, len(begin) if none.

    Each interval is the union of two overlapping runs of 2^k pieces. From the longest down, each run is halved: n log
    n, without Python work per piece.
    """
    some = np.flatnonzero(end > begin)
    level = np.frexp((end - begin)[some])[1] - 1
    out = np.full(pieces, len(begin), np.int32)
    for k in range(int(level.max(initial=0)), -1, -1):
        half = 1 << k
        halved = out.copy()
        np.minimum(out[half:], out[:-half], out=halved[half:])
        out = halved
        at_level = some[level == k]
        np.minimum.at(out, begin[at_level], number[at_level])
        np.minimum.at(out, end[at_level] - half, number[at_level])
    return out
