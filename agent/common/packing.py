"""Packs rows in a batch's memory layout, for processes without numpy. The agent uses the bytes as they are."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

from agent.columns import Column
from agent.common.address import addr_bytes, peer_of
from agent.common.table import Table


class Packer:
    """The packer of one table. ``row_bytes``: size of a row."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._row = struct.Struct("<" + "".join(column.form for column in table.columns))
        self.row_bytes = self._row.size
        self._nulls = [(column, column.name, column.null) for column in table.columns]

    def pack(self, rows: Iterable[Mapping[str, Any]]) -> bytes:
        """Bytes of a numpy array of the table's dtype. Missing values are unknown, and long texts are cut. Raises
        ValueError, TypeError or struct.error for an invalid row.
        """
        return b"".join(self._row.pack(*self._values(row)) for row in rows)

    def _values(self, row: Mapping[str, Any]) -> Iterable[object]:
        if unknown := set(row) - set(self._table.by_name):
            raise ValueError(f"{self._table.name} has no column {min(unknown)}")
        return [
            null if (value := row.get(name)) is None else _stored(column, value) for column, name, null in self._nulls
        ]


def _stored(column: Column, value: Any) -> object:
    if column.kind == "enum" and isinstance(value, str):
        return column.code(value)
    if column.kind in ("addr", "peer"):
        stored = value if isinstance(value, bytes) else peer_of(value) if column.kind == "peer" else addr_bytes(value)
        if len(stored) not in (0, {"addr": 16, "peer": 18}[column.kind]):
            raise ValueError(f"{column.name}: {value!r} is no address")
        return stored
    return value.encode(errors="replace") if isinstance(value, str) else value
