"""Converts numpy batches to Arrow tables: sentinels become nulls, codes become names, packed addresses become text.

Sealed Parquet and hot rows both go through ``to_arrow``, so queries treat both alike. Vectorised: Python code runs once
per distinct address, never per row. Only the sealer and the CLI import this; the agent never loads pyarrow. ``take``
and ``cast`` of an Arrow array load pyarrow.compute, 50 ms per query, so only rare text uses them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

# Arrow's own allocator takes 4 MB as soon as pyarrow is loaded and keeps freed memory; malloc returns it.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
import pyarrow as pa

from agent.clock.history import Converted
from agent.columns import HIST_BUCKETS, NULL_I64, Column
from agent.common.address import addr_text, peer_text
from agent.common.table import DERIVED
from agent.tables import TABLES

#: The derived wall columns, in the order of ``wall_arrays``.
WALL_COLUMNS = ("wall_ns", "wall_err_ns", "wall_state", "wall_alt_ns")
_STATES = next(c.names for c in DERIVED if c.name == "wall_state")
_PIECE_BYTES = 1 << 20
#: So many small pieces in a row become one, since each costs a query time.
_SMALL_PIECES, _SMALL_ROWS = 32, 1_000


def arrow_type(column: Column) -> pa.DataType:
    """The Arrow type of a column. A view has it even without rows."""
    types = {"i64": pa.int64(), "f64": pa.float64(), "bool": pa.bool_(), "hist": pa.list_(pa.uint32())}
    return types.get(column.kind, pa.string())


@cache
def schema(table: str) -> pa.Schema:
    """The columns of a stored table in order, then boot_id and host."""
    fields = [(c.name, arrow_type(c)) for c in TABLES[table].columns]
    return pa.schema([*fields, ("boot_id", pa.string()), ("host", pa.string())])


def to_arrow(table: str, rows: np.ndarray, boot_id: str, host: str) -> pa.Table:
    """rows: shape (n,), dtype ``TABLES[table].dtype``. Returns n rows with ``schema(table)``."""
    arrays = [_column(c, np.ascontiguousarray(rows[c.name])) for c in TABLES[table].columns]
    n = len(rows)
    arrays += [pa.repeat(pa.scalar(boot_id, pa.string()), n), pa.repeat(pa.scalar(host, pa.string()), n)]
    return pa.Table.from_arrays(arrays, schema=schema(table))


class Gathered:
    """Collects rows that arrive in pieces, and converts them to Arrow by the megabyte, so that memory holds
    them once.
    """

    def __init__(self) -> None:
        self._pieces: dict[str, list[_Piece]] = {}
        self._waiting: dict[tuple[str, str, str], list[np.ndarray]] = {}

    def add(self, table: str, rows: np.ndarray, boot_id: str, host: str) -> None:
        """rows: as for ``to_arrow``; they are copied."""
        waiting = self._waiting.setdefault((table, boot_id, host), [])
        waiting.append(rows.copy())
        if sum(part.nbytes for part in waiting) >= _PIECE_BYTES:
            self._convert(table, boot_id, host)

    def tables(self) -> dict[str, list[pa.Table]]:
        """All rows so far, by table, in order of arrival; batches of one boot and host are merged."""
        for key in list(self._waiting):
            self._convert(*key)
        return {table: [piece.rows for piece in pieces] for table, pieces in self._pieces.items()}

    def forget(self, old: Callable[[str, str, int], bool]) -> None:
        """Removes pieces. old: given a table, a boot and the newest time in a piece (CLOCK_BOOTTIME ns), whether nobody
        wants it any more.
        """
        for table, pieces in self._pieces.items():
            pieces[:] = [one for one in pieces if not old(table, one.boot_id, one.last_ns)]

    def _convert(self, table: str, boot_id: str, host: str) -> None:
        rows = np.concatenate(self._waiting.pop((table, boot_id, host)))
        new = _Piece(to_arrow(table, rows, boot_id, host), boot_id, int(rows["t_ns"].max()))
        pieces = self._pieces.setdefault(table, [])
        pieces.append(new)
        if len(small := pieces[-_SMALL_PIECES:]) == _SMALL_PIECES and all(
            one.boot_id == boot_id and len(one.rows) < _SMALL_ROWS for one in small
        ):
            merged = pa.concat_tables([one.rows for one in small]).combine_chunks()
            pieces[-_SMALL_PIECES:] = [_Piece(merged, boot_id, max(one.last_ns for one in small))]


class _Piece(NamedTuple):
    """Converted rows of one boot; last_ns: their newest time, CLOCK_BOOTTIME."""

    rows: pa.Table
    boot_id: str
    last_ns: int


def wall_arrays(times: Converted) -> list[pa.Array]:
    """The result of ``History.to_wall`` as Arrow arrays in the order of ``WALL_COLUMNS``."""
    wall, err, alt = (pa.array(a, mask=a == NULL_I64) for a in (times.ns, times.err_ns, times.alt_ns))
    return [wall, err, _named(_STATES, times.state), alt]


def _column(column: Column, values: np.ndarray) -> pa.Array:
    kind = column.kind
    if kind == "i64":
        return pa.array(values, mask=values == NULL_I64)
    if kind == "f64":
        return pa.array(values, mask=np.isnan(values))
    if kind == "bool":
        return pa.array(values > 0, mask=values < 0)
    if kind == "hist":
        offsets = np.arange(len(values) + 1, dtype=np.int32) * HIST_BUCKETS
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.reshape(-1)))
    if kind == "enum":
        return _named(column.names, values)
    if kind in ("addr", "peer"):
        texts, which = _distinct(values, addr_text if kind == "addr" else peer_text)
        return _plain_text(np.array([text.encode() for text in texts], "S")[which])
    if _is_ascii(values):
        return _plain_text(values)
    texts, which = _distinct(values, _utf8)  # an array of fixed width would need the widest text's memory for each row
    return pa.array([text or None for text in texts], pa.string()).take(pa.array(which.astype(np.int32)))


def _named(names: Sequence[str], codes: np.ndarray) -> pa.Array:
    """The name of each code, null for unknown codes."""
    known = (codes >= 0) & (codes < len(names))
    return _plain_text(np.array([*names, ""], "S")[np.where(known, codes, len(names))])


def _is_ascii(values: np.ndarray) -> bool:
    return not (values.view(np.uint8) > 127).any()


def _plain_text(values: np.ndarray) -> pa.Array:
    """values: ASCII, as numpy's fixed-width bytes; empty ones become null."""
    return pa.array(values, pa.binary(), mask=values == b"").view(pa.string())


def _distinct(values: np.ndarray, text: Callable[[bytes], str]) -> tuple[list[str], np.ndarray]:
    """The text of each distinct stored value, and each value's index in it. np.unique sorts the fixed-width bytes."""
    width = values.dtype.itemsize
    unique, inverse = np.unique(values.view(f"S{width}"), return_inverse=True)
    return [text(bytes(one).ljust(width, b"\0")) for one in unique], inverse


def _utf8(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("utf-8", "replace")
