"""Groups and sorts rows by their bytes, for structured arrays with columns of any kind. Pure.

numpy compares such rows one at a time. Here each row becomes a few integers, which are sorted many at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from agent.common.copies import opaque

_FEW = 1000  # rows up to which a dictionary is faster
_SOME = 2000  # rows up to which sorting them whole is faster
_MANY = 1 << 20  # rows above which three numbers do not fit into 64 bits
_ODD = 0x9E3779B97F4A7C15
_HALF = np.uint64(32)


def packed(columns: Sequence[np.ndarray]) -> np.ndarray:
    """The columns of each row as one value, whose ``tolist`` gives bytes."""
    out = np.empty(len(columns[0]), _together(tuple(c.dtype for c in columns)))
    for name, c in zip(out.dtype.names or (), columns, strict=True):
        out[name] = c
    return opaque(out)


@cache
def _together(of: tuple[np.dtype[np.generic], ...]) -> np.dtype[np.void]:
    return np.dtype([(str(i), dtype) for i, dtype in enumerate(of)])


def alike(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(index of each group's first row, group number of every row) for rows whose bytes are equal in all columns.
    Groups are numbered in the order of these bytes, as ``packed`` has them.
    """
    n = len(columns[0])
    found = _found(columns, n) if _FEW < n < _MANY else None
    if found is None:
        return _counted(columns, n)
    first, number, at = found
    order = by_bytes(packed([c[first] for c in columns]))
    rank = np.empty(len(first), np.int64)
    rank[order] = np.arange(len(first))
    group = np.empty(n, np.int64)
    group[at] = rank[number]
    return first[order], group


def _found(columns: Sequence[np.ndarray], n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """(index of each group's first row; group number of each row of ``at``; ``at``: rows by group, each group in
    order). The groups are unordered. None if two different rows have the same hash.
    """
    words = [word for c in columns for word in _words(c) if (word != word[0]).any()]
    mixed = np.zeros(n, np.uint64)
    for i, word in enumerate(words):
        mixed += word * np.uint64((_ODD * (2 * i + 1)) % 2**64)
    mixed ^= mixed >> _HALF
    mixed *= np.uint64(_ODD)
    mixed ^= mixed >> _HALF
    bits = np.uint64(n.bit_length())
    mixed <<= bits
    mixed |= np.arange(n, dtype=np.uint64)
    mixed.sort()
    at = (mixed & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)
    mixed >>= bits
    fresh = begins(mixed)
    same = ~fresh[1:]
    for word in words:
        its = word[at]
        if ((its[1:] != its[:-1]) & same).any():
            return None
    return at[fresh], np.cumsum(fresh) - 1, at


def _counted(columns: Sequence[np.ndarray], n: int) -> tuple[np.ndarray, np.ndarray]:
    each = packed(columns).tolist()
    ranks = {key: rank for rank, key in enumerate(sorted(dict.fromkeys(each)))}
    group = np.fromiter(map(ranks.__getitem__, each), np.int64, n)
    first = np.empty(len(ranks), np.int64)
    first[group[::-1]] = np.arange(n)[::-1]  # the last assignment wins, so the first row
    return first, group


def by_bytes(rows: np.ndarray, starts: np.ndarray | None = None) -> np.ndarray:
    """Indices that sort rows by their bytes, stably. starts: bool per row; True begins a part, and each part is sorted
    by itself.
    """
    n = len(rows)
    if n <= _SOME:
        order = np.argsort(rows.view(f"S{rows.dtype.itemsize}"), kind="stable")
        return order if starts is None else order[np.argsort(np.cumsum(starts)[order], kind="stable")]
    starts = np.arange(n) == 0 if starts is None else starts
    order = left = at = np.arange(n)  # left: rows without a final position; at: the positions that are left for them
    order = order.copy()
    words = rows.view(_pieces(rows.dtype.itemsize, ">"))  # the first word differs most often; words compare as bytes do
    for name in words.dtype.names or ():
        word = words[name].astype(np.uint64)[left] if 4 * len(left) > n else words[name][left].astype(np.uint64)
        fresh = begins(word)
        if not (fresh & ~starts).any():
            continue
        sub = _within(starts, word)
        order[at] = left = left[sub]
        starts = starts | begins(word[sub])
        more = ~starts
        more[:-1] |= ~starts[1:]
        left, at, starts = left[more], at[more], starts[more]
        if not len(left):
            break
    return order


def most(out: np.ndarray, group: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Raises each element of ``out`` to the largest value of its group. numpy's maximum.at takes thirty times as long
    if dtypes differ or values are not contiguous.
    """
    np.maximum.at(out, group, np.ascontiguousarray(values, out.dtype))
    return out


def least(out: np.ndarray, group: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The same with the smallest value."""
    np.minimum.at(out, group, np.ascontiguousarray(values, out.dtype))
    return out


def _within(starts: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Indices that sort each part by its values, stably."""
    n, part = len(values), np.cumsum(starts).astype(np.uint64)
    bits, parts = n.bit_length(), int(part[-1]).bit_length()
    differ = int(np.bitwise_or.reduce(values ^ values[0]))
    low = (differ & -differ).bit_length() - 1
    width = differ.bit_length() - low
    if parts + width + bits > 64:
        values, low, width = _rank(values), 0, bits
    if parts + width + bits > 64:
        return np.lexsort((values, part))
    part <<= np.uint64(width)
    part |= (values >> np.uint64(low)) & np.uint64((1 << width) - 1)
    part <<= np.uint64(bits)
    part |= np.arange(n, dtype=np.uint64)
    part.sort()
    part &= np.uint64((1 << bits) - 1)
    return part.astype(np.int64)


def _rank(values: np.ndarray) -> np.ndarray:
    """The rank of each value among all, equal for equal values."""
    order = np.argsort(values)
    rank = np.empty(len(values), np.uint64)
    rank[order] = np.cumsum(begins(values[order])).astype(np.uint64) - np.uint64(1)
    return rank


def begins(values: np.ndarray) -> np.ndarray:
    """bool per value: True where it differs from the one before."""
    out = np.empty(len(values), np.bool_)
    out[:1] = True
    np.not_equal(values[1:], values[:-1], out=out[1:])
    return out


def _words(column: np.ndarray) -> list[np.ndarray]:
    """The bytes of each value as integers."""
    parts = column.view(_pieces(column.dtype.itemsize))
    return [parts[name].astype(np.uint64) for name in parts.dtype.names or ()]


@cache
def _pieces(size: int, order: str = "<") -> np.dtype[np.void]:
    """A dtype of as few unsigned integers as possible for values of that size; order: byte order."""
    formats: list[str] = []
    offsets: list[int] = []
    at = 0
    for width in (8, 4, 2, 1):
        while size - at >= width:
            formats.append(f"{order}u{width}")
            offsets.append(at)
            at += width
    names = [str(i) for i in range(len(formats))]
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})
