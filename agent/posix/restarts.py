"""When a process that ended is started again: soon, then later and later, and not for ever. Pure: who asks tells the
time (seconds).
"""

from __future__ import annotations

#: Processes in a row that did not live for STEADY_S.
IN_A_ROW = 5
STEADY_S = 60.0
#: Before the first attempt. The agent may be ending too, and then nothing is to be started.
_FIRST_S = 0.5


class Restarts:
    """``count``: processes started again so far; ``given_up``: none is any more; ``last_s``: when the last one was,
    ``why``: what ended the one before it.
    """

    def __init__(self) -> None:
        self.count, self.given_up, self.why = 0, False, ""
        self.last_s = 0.0
        self._in_a_row = 0
        self._since_s = self._due_s = 0.0

    def ended(self, now_s: float, why: str) -> None:
        """A process has ended, or could not be started."""
        if now_s - self._since_s >= STEADY_S:
            self._in_a_row = 0
        self._in_a_row, self._since_s = self._in_a_row + 1, now_s
        self.why, self.given_up = why, self._in_a_row > IN_A_ROW
        self._due_s = now_s + _FIRST_S * 2 ** (self._in_a_row - 1)

    def due(self, now_s: float) -> bool:
        """Whether it is time for the next one."""
        return not self.given_up and now_s >= self._due_s

    def started(self, now_s: float) -> None:
        self.count += 1
        self.last_s = self._since_s = now_s
