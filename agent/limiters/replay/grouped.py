"""Groups rows by limiter and key. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from agent.common.copies import pick

_MIX = np.uint64(0x9E3779B97F4A7C15)


def codes(columns: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(index of each group's first row, group number of every row) of rows that are equal in all columns.

    Compares 64-bit hashes, since texts take ten times as long to sort; in case of a collision, the columns themselves.
    """
    given = list(columns)
    n = len(given[0])
    given = [column for column in given if not (column == column[0]).all()]
    if not given:
        return np.zeros(1, np.int64), np.zeros(n, np.int64)
    mixed = np.zeros(n, np.uint64)
    for column in given:
        width = -(-column.dtype.itemsize // 8)
        padded = np.zeros((n, width * 8), np.uint8)
        padded[:, : column.dtype.itemsize] = np.ascontiguousarray(column).view(np.uint8).reshape(n, -1)
        for word in padded.view(np.uint64).reshape(n, width).T:
            mixed = (mixed ^ word) * _MIX
            mixed ^= mixed >> np.uint64(29)
    _, first, group = np.unique(mixed, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    if all(bool((column == column[first][group]).all()) for column in given):
        return first, group
    packed = np.empty(n, [(str(i), column.dtype) for i, column in enumerate(given)])
    for i, column in enumerate(given):
        packed[str(i)] = column
    _, first, group = np.unique(packed, return_index=True, return_inverse=True)
    return first, group.reshape(-1)


def picked(rows: np.ndarray, at: np.ndarray) -> np.ndarray:
    """``rows[at]`` for increasing indices; a view if they are contiguous, since rows are wide."""
    whole = len(at) > 0 and int(at[-1]) - int(at[0]) + 1 == len(at)
    return rows[int(at[0]) : int(at[-1]) + 1] if whole else pick(rows, at)


def starts_of(sorted_codes: np.ndarray) -> np.ndarray:
    """The start of each run of equal numbers."""
    return (
        np.flatnonzero(np.append(True, sorted_codes[1:] != sorted_codes[:-1]))
        if len(sorted_codes)
        else np.zeros(0, np.int64)
    )
