"""Numpy batches as Arrow tables: sentinels become nulls, codes become names, packed addresses become text.

Sealed Parquet and hot rows both go through ``to_arrow``, so both answer a query alike. Vectorised: Python code runs once
per distinct address, never per row. Imported by the sealer and the CLI only; the agent never loads pyarrow.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agent.clock.history import Converted
from agent.columns import HIST_BUCKETS, NULL_I64, Column
from agent.common.address import addr_text, peer_text
from agent.common.table import DERIVED
from agent.tables import TABLES

#: The derived wall columns, in the order of ``wall_arrays``.
WALL_COLUMNS = ("wall_ns", "wall_err_ns", "wall_state", "wall_alt_ns")
_STATES = next(c.names for c in DERIVED if c.name == "wall_state")


def arrow_type(column: Column) -> pa.DataType:
    """The Arrow type of a column: what a view shows, also where it has no row."""
    types = {"i64": pa.int64(), "f64": pa.float64(), "bool": pa.bool_(), "hist": pa.list_(pa.uint32())}
    return types.get(column.kind, pa.string())


@cache
def schema(table: str) -> pa.Schema:
    """Columns of a stored table in order, ended by boot_id and host."""
    fields = [(c.name, arrow_type(c)) for c in TABLES[table].columns]
    return pa.schema([*fields, ("boot_id", pa.string()), ("host", pa.string())])


def to_arrow(table: str, rows: np.ndarray, boot_id: str, host: str) -> pa.Table:
    """rows: shape (n,), dtype ``TABLES[table].dtype``. Returns n rows with ``schema(table)``."""
    arrays = [_column(c, np.ascontiguousarray(rows[c.name])) for c in TABLES[table].columns]
    n = len(rows)
    arrays += [pa.repeat(pa.scalar(boot_id, pa.string()), n), pa.repeat(pa.scalar(host, pa.string()), n)]
    return pa.Table.from_arrays(arrays, schema=schema(table))


def wall_arrays(times: Converted) -> list[pa.Array]:
    """What ``History.to_wall`` returns, as Arrow arrays in the order of ``WALL_COLUMNS``."""
    wall, err, alt = (pa.array(a, mask=a == NULL_I64) for a in (times.ns, times.err_ns, times.alt_ns))
    state = times.state
    names = pa.array([*_STATES, None], pa.string()).take(
        pa.array(np.where(state < 0, len(_STATES), state).astype(np.int32))
    )
    return [wall, err, names, alt]


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
        names = pa.array([*column.names, None], pa.string())
        known = (values >= 0) & (values < len(column.names))
        return names.take(pa.array(np.where(known, values, len(column.names)).astype(np.int32)))
    if kind in ("addr", "peer"):
        return _take_text(values, addr_text if kind == "addr" else peer_text)
    return _take_text(values, _utf8) if not _is_utf8(values) else _plain_text(values)


def _is_utf8(values: np.ndarray) -> bool:
    return not (values.view(np.uint8) > 127).any()


def _plain_text(values: np.ndarray) -> pa.Array:
    strings = pa.array(values, pa.binary()).cast(pa.string())
    return pc.if_else(pc.equal(strings, ""), pa.scalar(None, pa.string()), strings)


def _take_text(values: np.ndarray, text: Any) -> pa.Array:
    """Each distinct stored value as text, once. Sorting fixed-width bytes is what np.unique does with them."""
    unique, inverse = np.unique(values.view(f"S{values.dtype.itemsize}"), return_inverse=True)
    width = values.dtype.itemsize
    texts = pa.array([text(bytes(u).ljust(width, b"\0")) or None for u in unique], pa.string())
    return texts.take(pa.array(inverse.astype(np.int32)))


def _utf8(raw: bytes) -> str | None:
    return raw.rstrip(b"\0").decode("utf-8", "replace") or None
