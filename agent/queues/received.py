"""Parses and checks the messages of a broker process (agent/queues/poller_worker.py). Pure."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from agent.common.table import Table
from agent.queues.packing import ROW_BYTES, SENT, TABLE
from agent.queues.poller_worker import ALIVE, HEADER, MOST_FAILURES, PIECE_ROWS, REASON_CHARACTERS

#: Of a message.
MOST_BYTES = 1 << 18
_MOST_DROPPED = 1 << 32


class MalformedMessage(ValueError):
    """The message is malformed."""


class Report(NamedTuple):
    """rows: of ``table``; failures: name -> reason, None if the message has rows; dropped: rows since the previous
    message.
    """

    table: str
    rows: npt.NDArray[np.void]
    failures: dict[str, str] | None
    dropped: int


def checked(data: bytes, systems: Collection[str], from_ns: int, now_ns: int) -> Report:
    """systems: those that are polled. Rows must be of them, with ``t_ns`` after ``from_ns`` and until ``now_ns``
    (CLOCK_BOOTTIME). Raises MalformedMessage.
    """
    if not HEADER.size <= len(data) < MOST_BYTES:
        raise MalformedMessage(f"{len(data)} bytes")
    kind, dropped = HEADER.unpack_from(data)
    if dropped > _MOST_DROPPED:
        raise MalformedMessage(f"{dropped} rows dropped")
    body = data[HEADER.size :]
    if kind == ALIVE:
        return Report(TABLE.name, TABLE.empty(0), _failures(body), dropped)
    if kind < len(SENT):
        return Report(SENT[kind].name, _rows(SENT[kind], body, systems, from_ns, now_ns), None, dropped)
    raise MalformedMessage(f"kind {kind}")


def _rows(table: Table, body: bytes, systems: Collection[str], from_ns: int, now_ns: int) -> npt.NDArray[np.void]:
    size = ROW_BYTES[table.name]
    if not body or len(body) > PIECE_ROWS * size or len(body) % size:
        raise MalformedMessage(f"{len(body)} bytes of rows")
    rows: npt.NDArray[np.void] = np.frombuffer(body, table.dtype)
    if not ((rows["t_ns"] > from_ns) & (rows["t_ns"] <= now_ns)).all():
        raise MalformedMessage("rows of another time")
    width = table.dtype["system"].itemsize
    if not np.isin(rows["system"], [system.encode()[:width] for system in systems]).all():
        raise MalformedMessage("rows of another kind of broker")
    for column in table.columns:
        if column.kind == "enum" and not ((rows[column.name] >= -1) & (rows[column.name] < len(column.names))).all():
            raise MalformedMessage(f"rows with no such {column.name}")
    return rows


def _failures(body: bytes) -> dict[str, str]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedMessage("no JSON") from error
    if not isinstance(found, dict) or len(found) > MOST_FAILURES:
        raise MalformedMessage("no failures, or too many")
    if not all(isinstance(text, str) and len(text) <= REASON_CHARACTERS for one in found.items() for text in one):
        raise MalformedMessage("failures that are no texts, or too long ones")
    return found
