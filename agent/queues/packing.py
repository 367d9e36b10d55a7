"""Packs rows of ``queue_lag`` in the brokers' process, which has no numpy."""

from __future__ import annotations

from collections.abc import Iterable

from agent.common.packing import Packer
from agent.queues.catalogue import Row
from agent.tables import TABLES

TABLE = TABLES["queue_lag"]
_PACKER = Packer(TABLE)
ROW_BYTES = _PACKER.row_bytes


def pack(rows: Iterable[Row]) -> bytes:
    """As ``Packer.pack``."""
    return _PACKER.pack(rows)
