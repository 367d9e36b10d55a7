"""The errors that servers answer with, second by second. Each code has a baseline of its own. Pure.

Example: a client that asks for a feature that an older server lacks gets an error at each connection, although nothing
is wrong.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

_SECONDS = 120
_MOST = 16  # codes of one server in a second, the most frequent ones


@dataclass(frozen=True)
class RecentErrors:
    """One error of one server. n: in the last seconds; before: in the time before; first_ns: the first of the last
    seconds.
    """

    code: str
    n: int
    before: int
    first_ns: int


class Codes:
    """By server (any key). Seconds without errors take no memory."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[tuple[int, int, dict[str, int]]]] = {}

    def note(self, server: int, second: int, first_ns: int, counts: Mapping[str, int]) -> None:
        most = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:_MOST]
        self._seen.setdefault(server, deque()).append((second, first_ns, dict(most)))
        seen = self._seen[server]
        while seen and seen[0][0] <= second - _SECONDS:
            seen.popleft()

    def forget(self, server: int) -> None:
        """Forgets a key that another server gets."""
        self._seen.pop(server, None)

    def before(self, server: int, second: int) -> Counter[str]:
        """How many errors of each code there were until the end of that second."""
        found = Counter[str]()
        for at, _, counts in self._seen.get(server, ()):
            if at <= second:
                found.update(counts)
        return found

    def lately(self, server: int, second: int, seconds: int) -> list[RecentErrors]:
        """The errors of the last ``seconds``, the most frequent first."""
        seen = self._seen.get(server, ())
        now = [one for one in seen if one[0] > second - seconds]
        codes, before = sorted({code for _, _, counts in now for code in counts}), self.before(server, second - seconds)
        found = [
            RecentErrors(
                code,
                sum(counts.get(code, 0) for _, _, counts in now),
                before[code],
                min(first_ns for _, first_ns, counts in now if code in counts),
            )
            for code in codes
        ]
        return sorted(found, key=lambda one: -one.n)
