"""Steps of which nobody got a notice, since the clock watch was not there: the agent sees them by comparing, and tells
them as losses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from agent.batch import Batch, Loss, losses
from agent.clock.calls import NOISE_NS

if TYPE_CHECKING:
    from agent.clock.change import Change
    from agent.clock.process import Unwatched, WatchMessage

SOURCE = "clock notices"
#: A step that no kernel program saw is dated when it was found, which may be after the watch is back.
_LATE_NS = 1_500_000_000
_TOLD = 256


class Untold:
    """outages: when the watch was not there, CLOCK_BOOTTIME ns, the last ones."""

    def __init__(self, outages: Iterable[Unwatched]) -> None:
        self._outages = outages
        self._told: deque[WatchMessage] = deque(maxlen=_TOLD)

    def heard(self, told: WatchMessage) -> None:
        """The watch told of this step: so its subscribers were too."""
        self._told.append(told)

    def losses(self, changes: Iterable[Change], now_ns: int) -> list[Batch]:
        """A row of ``loss`` for the steps among these, where there are any."""
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
            self._same(change, told) for told in self._told if told.t_ns >= away.from_ns
        )

    @staticmethod
    def _same(change: Change, told: WatchMessage) -> bool:
        after = change.real_mono_after_ns
        return (
            after is not None and abs(after - told.real_mono_after_ns) <= NOISE_NS + (change.err_ns or 0) + told.err_ns
        )
