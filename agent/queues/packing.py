"""Packs rows of ``queue_lag`` and ``timer_effect`` in the brokers' process, which has no numpy."""

from __future__ import annotations

from collections.abc import Iterable

from agent.common.packing import Packer
from agent.queues.catalogue import Row
from agent.tables import TABLES

TABLE, TIMER_TABLE = TABLES["queue_lag"], TABLES["timer_effect"]
_PACKER, _TIMER_PACKER = Packer(TABLE), Packer(TIMER_TABLE)
ROW_BYTES, TIMER_BYTES = _PACKER.row_bytes, _TIMER_PACKER.row_bytes


def pack(rows: Iterable[Row]) -> bytes:
    """As ``Packer.pack``."""
    return _PACKER.pack(rows)


def pack_timers(rows: Iterable[Row]) -> bytes:
    """As ``Packer.pack``."""
    return _TIMER_PACKER.pack(rows)
