"""Rows of a live store as dictionaries, with the same columns and values that a query gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from agent.clock.history import History
from agent.store.arrow import WALL_COLUMNS, to_arrow, wall_arrays
from agent.store.frames import Head
from agent.store.names import columns
from agent.store.query import offsets, to_wall
from agent.store.reader import snapshot


class LiveRows:
    """Keeps the offset history of one boot up to date; ``learn`` it the ``clock_offset`` rows that go by."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).absolute()
        self._boot = ""
        self._history = History()

    def learn(self, head: Head, rows: np.ndarray) -> None:
        self._load(head)
        self._history.append(rows)

    def dicts(self, head: Head, table: str, rows: np.ndarray) -> list[dict[str, Any]]:
        """One dict a row, in the columns of ``names.columns(table)``; json columns stay text."""
        self._load(head)
        found = to_arrow(table, rows, head.boot_id, head.host)
        for name, array in zip(WALL_COLUMNS, wall_arrays(to_wall(self._history, rows["t_ns"])), strict=True):
            found = found.append_column(name, array)
        return list(found.select(columns(table)).to_pylist())

    def _load(self, head: Head) -> None:
        if head.boot_id != self._boot:
            self._boot = head.boot_id
            self._history = History.from_rows(offsets(snapshot(self._path, frozenset({"clock_offset"})), self._path, head.boot_id))
