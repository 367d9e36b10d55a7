"""Whose turn it is to have a request read, and how many decisions and frames a user may send: so that nobody's flood
keeps another's decisions out. Pure but for asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator

#: Decisions of one user: a second, and at once, as after a pause.
PER_S, BURST = 5_000, 10_000
#: Frames of HTTP/2 of one user, likewise: a call with one decision takes four or five, and reading them is dearer than
#: sending.
FRAMES_PER_S, FRAMES_BURST = 4_000, 8_000
_MOST_USERS = 4096


class Turns:
    """One request at a time, of one user after the other, however many each has."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}
        self._taken = False

    @contextlib.asynccontextmanager
    async def of(self, uid: int) -> AsyncIterator[None]:
        if self._taken:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(uid, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():  # it was given already
                    self._next()
                raise
        self._taken = True
        try:
            yield
        finally:
            self._next()

    def _next(self) -> None:
        """Gives the turn to the user who has waited for longest since the last one."""
        self._taken = False
        while self._waiting:
            uid = next(iter(self._waiting))
            queue = self._waiting.pop(uid)
            turn = queue.popleft()
            if queue:
                self._waiting[uid] = queue  # behind the others
            if not turn.done():
                self._taken = True
                turn.set_result(None)
                return


class DecisionRates:
    """What is left of each user's decisions."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[float, float]] = {}

    def take(self, uid: int, wanted: int) -> int:
        """How many of so many it may have now."""
        now_s = time.monotonic()
        if len(self._left) > _MOST_USERS:
            self._left.clear()
        left, since_s = self._left.get(uid, (BURST, now_s))
        left = min(BURST, left + (now_s - since_s) * PER_S)
        given = min(wanted, int(left))
        self._left[uid] = left - given, now_s
        return given


class FramePace:
    """How far each user's frames are ahead of what they may be."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[float, float]] = {}

    def wait_s(self, uid: int, frames: int, now_s: float) -> float:
        """How long to wait before more is read of a user who has sent so many more. now_s: time.monotonic."""
        if len(self._left) > _MOST_USERS:
            self._left.clear()
        left, since_s = self._left.get(uid, (FRAMES_BURST, now_s))
        left = min(FRAMES_BURST, left + (now_s - since_s) * FRAMES_PER_S) - frames
        self._left[uid] = left, now_s
        return max(0.0, -left / FRAMES_PER_S)
