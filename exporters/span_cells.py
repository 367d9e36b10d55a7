"""Rows' cells as attributes, ids and events of spans."""

from __future__ import annotations

import numpy as np

from agent.columns import NULL_I64, Column
from agent.tables import TABLES
from exporters.values import Value, column_values

#: Columns that a span has elsewhere, or that are meaningless outside this host's memory.
_LEFT_OUT = frozenset(
    {
        "t_ns",
        "duration_ns",
        "trace_id",
        "span_id",
        "sock_id",
        "netns",
        "hist",
        "start_ns",
        "end_ns",
        "sentence_parts",
    }
)
#: Not a column: the name of a container that is in no pod. It has an attribute of its own.
RUNTIME_NAME = "runtime_name"
#: Not a column: the probability with which a decision of its kind became a span.
CHANCE = "sampling.probability"
#: Columns of a process, which its resource has (exporters/process_resource.py).
PROCESS_COLUMNS = ("pid", "proc_start_ns", "cgroup_id", "comm", "container_id")


def dicts(table: str, rows: np.ndarray) -> list[dict[str, Value]]:
    """The known values of each row, by column."""
    columns = {c.name: column_values(c, rows[c.name]) for c in TABLES[table].columns}
    return [{name: v for name, values in columns.items() if (v := values[i]) is not None} for i in range(len(rows))]


def raw_rows(rows: np.ndarray) -> list[bytes]:
    size, raw = rows.dtype.itemsize, rows.tobytes()
    return [raw[i : i + size] for i in range(0, len(raw), size)]


def numbered(rows: np.ndarray) -> list[tuple[bytes, int]]:
    """Each row's bytes, and the number of equal rows before it: two equal events are two spans."""
    seen: dict[bytes, int] = {}
    out = []
    for raw in raw_rows(rows):
        seen[raw] = nth = seen.get(raw, -1) + 1
        out.append((raw, nth))
    return out


def known_or(values: np.ndarray, instead: np.ndarray) -> np.ndarray:
    return np.where(values == NULL_I64, instead, values)


def w3c_id(raw: bytes, size: int) -> bytes | None:
    """A W3C id's bytes; None if it is missing, malformed or all zero."""
    if len(raw) != 2 * size:
        return None
    try:
        value = bytes.fromhex(raw.decode("ascii"))
    except ValueError:
        return None
    return value if any(value) else None


def cells_of(table: str, rows: np.ndarray) -> dict[str, list[Value | None]]:
    """The columns that become attributes, without those that are unknown in all rows."""
    names = rows.dtype.names or ()
    left_out = (
        _LEFT_OUT | (set(PROCESS_COLUMNS) if "pid" in names else set()) | ({"peer"} if "daddr" in names else set())
    )
    out: dict[str, list[Value | None]] = {}
    for column in TABLES[table].columns:
        if column.name not in names or column.name in left_out:
            continue
        values = column_values(column, rows[column.name])
        if any(v is not None for v in values):
            out[column.name] = values
    return _named_by_runtime(out)


def _named_by_runtime(cells: dict[str, list[Value | None]]) -> dict[str, list[Value | None]]:
    if names := cells.get("container_name"):
        pods = cells.get("pod") or [None] * len(names)
        cells["container_name"] = [name if pod else None for name, pod in zip(names, pods, strict=True)]
        cells[RUNTIME_NAME] = [None if pod else name for name, pod in zip(names, pods, strict=True)]
    return cells


def attribute_of(table: str, column: str) -> str:
    if column == CHANCE:
        return f"tickscope.{CHANCE}"
    if column == RUNTIME_NAME:
        return "container.name"
    declared: Column = TABLES[table].by_name[column]
    return declared.attribute or f"tickscope.{column}"
