"""Stored column values as exported ones: nulls left out, enums by name, addresses as text."""

from __future__ import annotations

import errno
import math
import socket
from functools import lru_cache

import numpy as np

from agent.columns import NULL_I64, Column

Value = str | int | float | bool
_MAPPED = bytes(10) + b"\xff\xff"


@lru_cache(maxsize=4096)
def address(raw: bytes) -> str | None:
    """The text of a 16-byte address (IPv4 as v4-mapped IPv6); None where it is all zero, which means unknown."""
    if not any(raw):
        return None
    if raw.startswith(_MAPPED):
        return socket.inet_ntop(socket.AF_INET, raw[12:])
    return socket.inet_ntop(socket.AF_INET6, raw)


@lru_cache(maxsize=4096)
def text(raw: bytes) -> str | None:
    """Stored text as str (bytes that are not UTF-8 replaced, since OTLP refuses them); None for the empty one."""
    return raw.decode("utf-8", "replace") or None


def column_values(column: Column, values: np.ndarray) -> list[Value | None]:
    """One exported value per row, None where it is unknown; ``values`` has shape (n,) and dtype ``column.dtype``.

    A ``peer`` becomes ``ip:port``. An errno becomes its symbolic name, since ``error.type`` is a text by convention.
    """
    if column.kind == "i64":
        known: list[Value | None] = [None if v == NULL_I64 else v for v in values.tolist()]
        return [errno.errorcode.get(int(v), str(v)) if v else None for v in known] if column.attribute == "error.type" else known
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
        return [address(c) for c in cells] if column.kind == "addr" else [_peer(c) for c in cells]
    return [text(v) for v in values.tolist()]


def _peer(raw: bytes) -> str | None:
    host = address(raw[:16])
    if host is None:
        return None
    port = int.from_bytes(raw[16:18], "little")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
