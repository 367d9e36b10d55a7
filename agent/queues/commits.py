"""Whether a group whose committed offset stays the same reads nothing. Pure."""

from __future__ import annotations

from agent.queues.status import WINDOW_NS

#: Without a known commit interval, a group that commits nothing for this long reads nothing.
_PATIENCE_NS = 60_000_000_000
#: Times the longest of the last intervals between commits.
_INTERVALS, _REMEMBERED = 3, 5


class Commits:
    """The committed offset of one partition or log. A consumer commits every few seconds, or minutes, so an offset that
    stays the same shows only after a while that nothing is read.
    """

    def __init__(self) -> None:
        self._offset, self._since_ns = -1, 0
        self._intervals_ns: list[int] = []
        self._whole = False  # the interval of the first poll began before it

    def position(self, offset: int, lag: int | None, consumed: bool, now_ns: int) -> int | None:
        """``position`` for agent/queues/judged.py: the offset once it means that nothing is read, else None. consumed:
        whether the group may have a consumer.
        """
        if offset != self._offset:
            if self._whole:
                took_ns = now_ns - self._since_ns
                if self._intervals_ns:  # a standstill is no usual interval
                    took_ns = min(took_ns, max(self._patience_ns, _PATIENCE_NS))
                self._intervals_ns = [*self._intervals_ns, took_ns][-_REMEMBERED:]
            self._whole = self._offset >= 0
            self._offset, self._since_ns = offset, now_ns
        elif lag == 0 or not consumed:
            self._since_ns = now_ns  # nothing to commit, or nobody who does
        quiet_ns = now_ns - self._since_ns
        return offset if not consumed or quiet_ns >= self._patience_ns - WINDOW_NS else None

    @property
    def _patience_ns(self) -> int:
        return _INTERVALS * max(self._intervals_ns) if self._intervals_ns else _PATIENCE_NS
