"""Each finding as a line on stderr, once when it is opened and once when it is closed: for the journal of a service."""

from __future__ import annotations

from agent.batch import Batch
from agent.common.finding import CHANGED, FindingEvents
from agent.common.sentence import ToWall
from agent.log import log_message


class FindingLog:
    """A sink. wall: Unix ns of CLOCK_BOOTTIME ns, arrays of shape (n,). left_out: severities that the journal gets from
    elsewhere.
    """

    name = "finding log"

    def __init__(self, wall: ToWall, left_out: tuple[str, ...] = ()) -> None:
        self._events = FindingEvents(wall)
        self._left_out = left_out

    def offer(self, batch: Batch) -> None:
        for one in self._events.of(batch):
            if one.event != CHANGED and one.text("severity") not in self._left_out:
                log_message(f"tickscope: {one.message}", one.level, event=f"finding_{one.event}", **one.fields)

    def losses(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        """Nothing is kept open."""
