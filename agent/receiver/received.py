"""What the receiver's process (agent/receiver/worker.py) sends, as the agent takes it: checked before anything of it is
used. Pure.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from agent.receiver.wire import (
    ALIVE,
    COUNTS,
    ENDS,
    GONE,
    KIND,
    NUMBER,
    PIECE_ROWS,
    ROWS,
    TABLE,
    WHO,
)

#: Of a message.
MOST_BYTES = 1 << 18
_OTLP = TABLE.code("source", "otlp")
#: Who sent a row is for the kernel to say, and where it is.
_OURS = ("pid", "tid", "proc_start_ns", "cgroup_id")


class NoOtlpMessage(ValueError):
    """What came is none."""


class ClientEnds(NamedTuple):
    """Of a connection, as the client has them: addresses as tables store them."""

    saddr: bytes
    sport: int
    daddr: bytes
    dport: int


class ReceiverMessage(NamedTuple):
    """One message. kind: as wire.py has it; number: of a connection; the others by kind. ``t_ns`` of rows is Unix time,
    0 unknown.
    """

    kind: int
    number: int = 0
    ends: ClientEnds | None = None
    rows: npt.NDArray[np.void] | None = None
    counts: dict[str, int] | None = None
    connections: int = 0


def checked(data: bytes) -> ReceiverMessage:
    """Raises NoOtlpMessage."""
    if not KIND.size <= len(data) < MOST_BYTES:
        raise NoOtlpMessage(f"{len(data)} bytes")
    (kind,), said = KIND.unpack_from(data), data[KIND.size :]
    if kind == ALIVE:
        return _alive(said)
    if kind == GONE and len(said) == NUMBER.size:
        return ReceiverMessage(kind, *NUMBER.unpack(said))
    if kind == WHO and len(said) == ENDS.size:
        number, *ends = ENDS.unpack(said)
        return ReceiverMessage(kind, number, ClientEnds(*ends))
    if kind == ROWS and len(said) > NUMBER.size:
        (number,) = NUMBER.unpack_from(said)
        return ReceiverMessage(kind, number, rows=_rows(said[NUMBER.size :]))
    raise NoOtlpMessage(f"kind {kind} with {len(said)} bytes")


def _rows(said: bytes) -> npt.NDArray[np.void]:
    size = TABLE.dtype.itemsize
    if len(said) % size or len(said) > PIECE_ROWS * size:
        raise NoOtlpMessage(f"{len(said)} bytes of rows")
    rows: npt.NDArray[np.void] = np.frombuffer(said, TABLE.dtype).copy()
    if not (rows["source"] == _OTLP).all() or not (rows["t_ns"] >= 0).all():
        raise NoOtlpMessage("rows of another source, or time")
    for name in _OURS:
        if not (rows[name] == TABLE.by_name[name].null).all():
            raise NoOtlpMessage(f"rows with {name}")
    for column in TABLE.columns:
        if column.kind == "enum" and not ((rows[column.name] >= -1) & (rows[column.name] < len(column.names))).all():
            raise NoOtlpMessage(f"rows with no such {column.name}")
    return rows


def _alive(said: bytes) -> ReceiverMessage:
    try:
        found = json.loads(said)
        counts, connections = found["counts"], found["connections"]
        ok = set(counts) == set(COUNTS) and all(
            type(n) is int and 0 <= n < 1 << 62 for n in (*counts.values(), connections)
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NoOtlpMessage("no sign of life") from error
    if not ok:
        raise NoOtlpMessage("no sign of life")
    return ReceiverMessage(ALIVE, counts=counts, connections=connections)
