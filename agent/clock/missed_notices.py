"""Steps without a notice, because the clock watch was not running. The agent finds them by comparing offsets, and
reports them as losses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from agent.batch import Batch, Loss, losses
from agent.clock.calls import NOISE_NS

if TYPE_CHECKING:
    from agent.clock.change import Change
    from agent.clock.watch_process import Unwatched, WatchMessage

SOURCE = "clock notices"
#: A step that no kernel program saw is dated when it is found, which may be after the watch's restart.
_LATE_NS = 1_500_000_000
_MOST = 256


class MissedNotices:
    """outages: the last intervals without a watch, CLOCK_BOOTTIME ns."""

    def __init__(self, outages: Iterable[Unwatched]) -> None:
        self._outages = outages
        self._messages: deque[WatchMessage] = deque(maxlen=_MOST)

    def note(self, message: WatchMessage) -> None:
        """Notes a step that the watch reported: its subscribers got a notice."""
        self._messages.append(message)

    def losses(self, changes: Iterable[Change], now_ns: int) -> list[Batch]:
        """A row of ``loss`` for the steps among these, if there are any."""
        missed = [c.t_ns for c in changes if c.size_ns and c.kind in ("step", "leap") and self._missed(c)]
        if not missed:
            return []
        return [losses("export", Loss(SOURCE, len(missed), min(missed), max(missed), now_ns))]

    def _missed(self, change: Change) -> bool:
        away = next(
            (
                o
                for o in self._outages
                if o.from_ns <= change.t_ns and (not o.to_ns or change.t_ns <= o.to_ns + _LATE_NS)
            ),
            None,
        )
        return away is not None and not any(
            self._same(change, message) for message in self._messages if message.t_ns >= away.from_ns
        )

    @staticmethod
    def _same(change: Change, message: WatchMessage) -> bool:
        after = change.real_mono_after_ns
        return (
            after is not None
            and abs(after - message.real_mono_after_ns) <= NOISE_NS + (change.err_ns or 0) + message.err_ns
        )
