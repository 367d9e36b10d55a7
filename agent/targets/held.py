"""Looks that wait for their user's turn."""

from __future__ import annotations

from collections import deque

from agent.kernel.limits import LOOKS_WAITING


class Held:
    """By whose they are; LOOKS_WAITING in all at most."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], deque[tuple[int, bool]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def whose(self) -> list[tuple[str, int]]:
        return list(self._of)

    def hold(self, whose: tuple[str, int], pid: int, scan: bool) -> bool:
        """False where there is no room. One that waits already waits once."""
        if (pid, scan) in self._of.get(whose, ()):
            return True
        if len(self) >= LOOKS_WAITING:
            return False
        self._of.setdefault(whose, deque()).append((pid, scan))
        return True

    def take(self, whose: tuple[str, int]) -> tuple[int, bool]:
        """The one that has waited longest."""
        first = self._of[whose].popleft()
        if not self._of[whose]:
            del self._of[whose]
        return first

    def clear(self) -> None:
        self._of.clear()
