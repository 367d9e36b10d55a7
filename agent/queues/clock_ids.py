"""Ids that producers make of their wall clock: UUIDv7 and Snowflake. After a step back, new ones sort before older ones
until the clock has reached the time of the highest id again (docs/timers.md). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agent.columns import fitted
from agent.queues.message_values import uuidv7_ms, whole
from agent.queues.timers import QueueTimer
from agent.tables import TABLES

UUIDV7, SNOWFLAKE = "UUIDv7", "Snowflake"
_MOST_QUEUES = 1024
#: Of Snowflake ids, 41 bits of ms are before 22 others. Epochs, ms: Twitter's, Discord's, 1970.
_EPOCHS_MS = (1_288_834_974_657, 1_420_070_400_000, 0)
_BELOW_MS = 22
#: An id's time is at most so much after its message's. A Snowflake id's is not more before it, of so many in a row.
_NEAR_MS, _IN_A_ROW = 86_400_000, 3
_LARGEST = (1 << 63) - 1
_NS_PER_MS = 1_000_000
_WIDTH = TABLES["timer_effect"].by_name["destination"].width


def snowflake_ms(value: int | None, near_ms: int) -> int | None:
    """The Unix time of a Snowflake id with one of the known epochs, ms; None if it is none. near_ms: its message's."""
    if value is None or not 0 < value <= _LARGEST:
        return None
    made = ((value >> _BELOW_MS) + epoch for epoch in _EPOCHS_MS)
    return next((ms for ms in made if abs(ms - near_ms) < _NEAR_MS), None)


def _made(value: str | int | None, near_ms: int) -> tuple[str, int] | None:
    ms = uuidv7_ms(value)
    if ms is not None:
        return (UUIDV7, ms) if ms - near_ms < _NEAR_MS else None
    ms = snowflake_ms(whole(value), near_ms)
    return None if ms is None else (SNOWFLAKE, ms)


@dataclass
class _Ids:
    form: str
    highest_ms: int
    in_a_row: int = 1


class ClockIds:
    """The ids of some queues."""

    def __init__(self) -> None:
        self._of: dict[bytes, _Ids] = {}

    def see(self, queue: bytes, values: Iterable[str | int | None], near_ms: int) -> None:
        """A message with these ids and numbers. near_ms: its Unix time."""
        form, ms = next((made for value in values if (made := _made(value, near_ms)) is not None), ("", 0))
        if not form:
            self._of.pop(queue, None)
            return
        known = self._of.get(queue)
        if known is not None and known.form == form:
            known.highest_ms, known.in_a_row = max(known.highest_ms, ms), known.in_a_row + 1
            return
        if known is None and len(self._of) >= _MOST_QUEUES:
            del self._of[next(iter(self._of))]
        self._of[queue] = _Ids(form, ms)

    def timers(self) -> list[QueueTimer]:
        return [
            QueueTimer(fitted(queue, _WIDTH), ids.form.encode(), "id", due_wall_ns=ids.highest_ms * _NS_PER_MS)
            for queue, ids in self._of.items()
            if ids.form == UUIDV7 or ids.in_a_row >= _IN_A_ROW
        ]
