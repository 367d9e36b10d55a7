"""Which errors servers answer with, second by second: what is usual of one says nothing of another. Pure.

A client that asks for something that an older server does not know gets an error each time that it connects, and all is
well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

_SECONDS = 120
_MOST = 16  # codes of one server in a second, the most frequent ones


@dataclass(frozen=True)
class RecentErrors:
    """One error of one server. n: in the last seconds; before: in the time before; first_ns: of the last seconds."""

    code: str
    n: int
    before: int
    first_ns: int


class Codes:
    """By server (any key). Seconds without errors take no room."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[tuple[int, int, dict[str, int]]]] = {}

    def note(self, of: int, second: int, first_ns: int, counts: Mapping[str, int]) -> None:
        most = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:_MOST]
        self._seen.setdefault(of, deque()).append((second, first_ns, dict(most)))
        seen = self._seen[of]
        while seen and seen[0][0] <= second - _SECONDS:
            seen.popleft()

    def forget(self, of: int) -> None:
        """Somebody else has its key from now on."""
        self._seen.pop(of, None)

    def lately(self, of: int, second: int, seconds: int) -> list[RecentErrors]:
        """What came in the last ``seconds``, the most frequent first."""
        seen = self._seen.get(of, ())
        now = [one for one in seen if one[0] > second - seconds]
        codes = sorted({code for _, _, counts in now for code in counts})
        found = [
            RecentErrors(
                code,
                sum(counts.get(code, 0) for _, _, counts in now),
                sum(counts.get(code, 0) for at, _, counts in seen if at <= second - seconds),
                min(first_ns for _, first_ns, counts in now if code in counts),
            )
            for code in codes
        ]
        return sorted(found, key=lambda one: -one.n)
