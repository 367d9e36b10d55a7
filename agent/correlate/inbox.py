"""The rows that wait for the watermark. Only the columns that are read are kept."""

from __future__ import annotations

from functools import cache

import numpy as np

from agent.common.copies import pick, together
from agent.correlate.catalogue import dtypes, kept
from agent.correlate.rows import in_order


@cache
def _pieces(table: str, given: np.dtype[np.void]) -> tuple[np.dtype[np.void], np.dtype[np.void]]:
    """The kept columns as dtypes of pieces, in rows of ``given`` and in rows of ``dtypes()[table]``. Columns that are
    neighbours in both form one piece.
    """
    kept_dtype, pieces = dtypes()[table], list[tuple[int, int, int]]()
    for name in kept_dtype.names or ():
        of, at = given.fields[name][:2]  # type: ignore[index]
        assert of == kept_dtype[name], f"{table}.{name} is {of}"
        if pieces and sum(pieces[-1][::2]) == at:
            pieces[-1] = *pieces[-1][:2], pieces[-1][2] + of.itemsize
        else:
            pieces.append((at, kept_dtype.fields[name][1], of.itemsize))  # type: ignore[index]
    names, formats = [str(i) for i in range(len(pieces))], [f"V{size}" for _, _, size in pieces]
    of_given, of_kept = (
        np.dtype({"names": names, "formats": formats, "offsets": list(offsets), "itemsize": whole.itemsize})
        for offsets, whole in zip(list(zip(*pieces, strict=True))[:2], (given, kept_dtype), strict=True)
    )
    return of_given, of_kept


def compact(table: str, rows: np.ndarray) -> np.ndarray:
    """The columns of ``rows`` that are kept, dtype ``dtypes()[table]``."""
    given, kept_dtype = _pieces(table, rows.dtype)
    return np.asarray(rows.view(given).astype(kept_dtype).view(dtypes()[table]))


class Inbox:
    """Rows that wait for the watermark. Beyond ``limit`` rows of a table, the oldest arrivals are dropped and
    counted.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[str, list[np.ndarray]] = {table: [] for table in kept()}
        self._rows = dict.fromkeys(kept(), 0)
        self.dropped = 0

    def add(self, table: str, rows: np.ndarray) -> None:
        waiting = self._waiting[table]
        waiting.append(rows)
        self._rows[table] += len(rows)
        while self._rows[table] > self._limit:
            over = self._rows[table] - self._limit
            gone = min(over, len(waiting[0]))
            waiting[0] = waiting[0][gone:]
            if not len(waiting[0]):
                waiting.pop(0)
            self._rows[table] -= gone
            self.dropped += gone

    def take(self, until_ns: int) -> dict[str, np.ndarray]:
        """Rows with ``t_ns <= until_ns``, in order; the rest stays."""
        taken: dict[str, np.ndarray] = {}
        for table, waiting in self._waiting.items():
            if not waiting:
                continue
            rows = together(waiting)
            due = rows["t_ns"] <= until_ns
            if due.all():
                waiting.clear()
            elif due.any():
                waiting[:] = [pick(rows, ~due)]
                rows = pick(rows, due)
            else:
                waiting[:] = [rows]
                continue
            self._rows[table] = sum(map(len, waiting))
            taken[table] = in_order(rows)
        return taken
