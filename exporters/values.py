"""Stored column values as exported ones: nulls left out, enums by name, addresses as text."""

from __future__ import annotations

import errno
import math
from functools import lru_cache

import numpy as np

from agent.columns import NULL_I64, Column
from agent.common.address import addr_text, peer_text

Value = str | int | float | bool
#: Cached, since rows repeat them.
_addr, _peer = lru_cache(maxsize=4096)(addr_text), lru_cache(maxsize=4096)(peer_text)


@lru_cache(maxsize=4096)
def text(raw: bytes) -> str | None:
    """Stored text as str (invalid UTF-8 is replaced, since OTLP refuses it); None if it is empty."""
    return raw.decode("utf-8", "replace") or None


def column_values(column: Column, values: np.ndarray) -> list[Value | None]:
    """One exported value per row, None if unknown; ``values`` has shape (n,) and dtype ``column.dtype``.

    A ``peer`` becomes ``ip:port``. An errno becomes its symbolic name, since ``error.type`` is a text by convention.
    """
    if column.kind == "i64":
        known: list[Value | None] = [None if v == NULL_I64 else v for v in values.tolist()]
        return (
            [errno.errorcode.get(int(v), str(v)) if v else None for v in known]
            if column.attribute == "error.type"
            else known
        )
    if column.kind == "f64":
        return [None if math.isnan(v) else v for v in values.tolist()]
    if column.kind == "bool":
        return [None if v < 0 else v == 1 for v in values.tolist()]
    if column.kind == "enum":
        names = column.names
        return [names[v] if 0 <= v < len(names) else None for v in values.tolist()]
    if column.kind in ("addr", "peer"):
        width = column.dtype.itemsize
        raw = np.ascontiguousarray(values).tobytes()
        cells = [raw[i : i + width] for i in range(0, len(raw), width)]
        return [(_addr(c) if column.kind == "addr" else _peer(c)) or None for c in cells]
    return [text(v) for v in values.tolist()]
