"""Rows of ``queue_lag`` as they lie in memory: packed by who polls brokers, who has no numpy, and taken by the agent as they are."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from agent.columns import Column
from agent.common.address import addr_bytes, peer_of
from agent.queues.catalogue import Row
from agent.tables import TABLES

TABLE = TABLES["queue_lag"]
_ROW = struct.Struct("<" + "".join(column.form for column in TABLE.columns))
ROW_BYTES = _ROW.size


def pack(rows: Iterable[Row]) -> bytes:
    """Bytes of a numpy array of dtype ``TABLE.dtype``. Texts that are too long are cut. Raises ValueError, TypeError or struct.error for what is no such row."""
    return b"".join(_ROW.pack(*_values(row)) for row in rows)


def _values(row: Row) -> Iterable[object]:
    if unknown := set(row) - set(TABLE.by_name):
        raise ValueError(f"queue_lag has no column {min(unknown)}")
    return [_stored(column, row.get(column.name)) for column in TABLE.columns]


def _stored(column: Column, value: Any) -> object:
    if value is None:
        return column.null
    if column.kind == "enum" and isinstance(value, str):
        return column.code(value)
    if column.kind in ("addr", "peer"):
        stored = value if isinstance(value, bytes) else peer_of(value) if column.kind == "peer" else addr_bytes(value)
        if len(stored) not in (0, {"addr": 16, "peer": 18}[column.kind]):
            raise ValueError(f"{column.name}: {value!r} is no address")
        return stored
    return value.encode(errors="replace") if isinstance(value, str) else value
