"""How much one command asks of a Redis server, where a reply may be larger than agent/common/framing.py accepts."""

from __future__ import annotations

#: A refused reply costs up to 8 MiB and a login: after this many replies, more is tried again.
_REPLIES = 64
#: By how much a command asks less after a refused reply, and more after ``_REPLIES``.
_FACTOR = 4


class ReplySize:
    """number: of entries, or of whatever else one command asks for. It shrinks at once and grows slowly, unless a
    single one was the reason.
    """

    def __init__(self, most: int) -> None:
        self.number = self._most = self._goal = most
        self._before = self._replies = 0

    def refused(self, number: int) -> None:
        """The reply with so many was too large."""
        self._before = max(self._before, self._goal)
        self.number = self._goal = max(1, number // _FACTOR)
        self._replies = 0

    def refused_single(self) -> None:
        """That one alone is too large: the others may be small."""
        self._goal, self._before = max(self._before, self._goal), 0

    def received(self) -> None:
        self._replies += 1
        if self._replies >= _REPLIES:
            self._goal, self._before, self._replies = min(self._most, _FACTOR * self._goal), 0, 0
        self.number = min(self._goal, 2 * self.number)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left of what was refused."""
        return self.number == self._most
