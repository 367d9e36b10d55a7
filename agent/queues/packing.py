"""Packs rows in the brokers' process, which has no numpy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.common.packing import Packer
from agent.queues.queue import Row
from agent.tables import TABLES

TABLE = TABLES["queue_lag"]
#: The tables whose rows a broker process sends, in the order of their numbers in its messages.
SENT = (TABLE, TABLES["timer_effect"], TABLES["message_order"])
_PACKERS = {table.name: Packer(table) for table in SENT}
#: Of a row, by table.
ROW_BYTES: Mapping[str, int] = {name: packer.row_bytes for name, packer in _PACKERS.items()}


def pack(rows: Iterable[Row], table: str = TABLE.name) -> bytes:
    """As ``Packer.pack``."""
    return _PACKERS[table].pack(rows)
