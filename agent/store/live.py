"""Rows of a live store as dictionaries, with the columns and values of a query."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agent.ask.names import columns
from agent.clock.history import History
from agent.columns import NULL_I64
from agent.store import duck
from agent.store.answers import to_wall
from agent.store.arrow import WALL_COLUMNS, to_arrow, wall_arrays
from agent.store.frames import Head
from agent.store.query import offsets
from agent.store.reader import snapshot

if TYPE_CHECKING:
    import pyarrow as pa


class LiveRows:
    """Keeps the offset history of one boot up to date; pass new ``clock_offset`` rows to ``learn``."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).absolute()
        self._boot = ""
        self._history = History()

    def learn(self, head: Head, rows: np.ndarray) -> None:
        self._load(head)
        self._history.append(rows)

    def dicts(self, head: Head, table: str, rows: np.ndarray) -> list[dict[str, Any]]:
        """One dict per row, in the columns of ``names.columns(table)``; json columns stay text."""
        self._load(head)
        self._history.watched(int(rows["t_ns"].max(initial=NULL_I64)))
        found = to_arrow(table, rows, head.boot_id, head.host)
        return list(with_wall(found, rows["t_ns"], self._history).select(columns(table)).to_pylist())

    def _load(self, head: Head) -> None:
        if head.boot_id != self._boot:
            self._boot = head.boot_id
            with duck.plain() as db:
                taken = snapshot(self._path, frozenset({"clock_offset"}))
                self._history = History.from_rows(offsets(db, taken, self._path, head.boot_id))


def with_wall(found: pa.Table, t_ns: np.ndarray, history: History) -> pa.Table:
    """An Arrow table with the wall time columns of its rows' times (CLOCK_BOOTTIME ns); null if the history
    is empty.
    """
    for name, array in zip(WALL_COLUMNS, wall_arrays(to_wall(history, t_ns)), strict=True):
        found = found.append_column(name, array)
    return found
