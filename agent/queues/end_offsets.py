"""When messages were added to a log, from our own history of its end: of a partition of Kafka, a stream of NATS, or the
log of PostgreSQL. Pure.

The server reports how much waits, not for how long. The message at offset ``c`` was added between the last poll that
saw an end of at most ``c`` and the next one. This holds whatever timestamp a producer wrote, and needs no message to be
read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import NamedTuple

#: Samples of one log: 3 KiB.
SAMPLES = 128


class Age(NamedTuple):
    """Seconds since a message was added, and the largest error of that."""

    age_s: float
    error_s: float


class EndOffsets:
    """End offsets of one log, by the time of their polls (one clock, in ns).

    Never more than ``SAMPLES``: beyond that, every second sample of the older half is dropped. So the history reaches
    back to the first poll, and its error grows with the age.
    """

    def __init__(self) -> None:
        self._t_ns, self._ends, self._off_ns = array("q"), array("q"), array("q")

    def add(self, t_ns: int, end: int, off_ns: int = 0) -> None:
        """The end was read at this time, or at most so much before or after it. Times must increase. A smaller end than
        before, after the log was made anew, starts a new history.
        """
        if self._ends and end < self._ends[-1]:
            self._t_ns, self._ends, self._off_ns = array("q"), array("q"), array("q")
        if len(self._ends) > 1 and end == self._ends[-1] == self._ends[-2]:
            self._t_ns[-1], self._off_ns[-1] = t_ns, off_ns  # of equal ends, the first and the last are of use
            return
        self._t_ns.append(t_ns)
        self._ends.append(end)
        self._off_ns.append(off_ns)
        if len(self._ends) > SAMPLES:
            half = len(self._ends) // 2
            self._t_ns = self._t_ns[:half:2] + self._t_ns[half:]
            self._ends = self._ends[:half:2] + self._ends[half:]
            self._off_ns = self._off_ns[:half:2] + self._off_ns[half:]

    def age(self, offset: int, now_ns: int) -> Age | None:
        """Age of the message at this offset, linear between two polls. None if it is older than the history, or not yet
        there.
        """
        after = self._after(offset)
        if after is None:
            return None
        before = after - 1
        step_ns = self._t_ns[after] - self._t_ns[before]
        since_ns = (offset - self._ends[before] + 0.5) / (self._ends[after] - self._ends[before]) * step_ns
        error_ns = max(since_ns + self._off_ns[before], step_ns - since_ns + self._off_ns[after])
        return Age(max(0.0, now_ns - self._t_ns[before] - since_ns) / 1e9, error_ns / 1e9)

    def between(self, offset: int) -> tuple[int, int] | None:
        """The times of the two polls between which the message at this offset was added, each as far apart as it may
        be; None as for ``age``.
        """
        after = self._after(offset)
        if after is None:
            return None
        before = after - 1
        return self._t_ns[before] - self._off_ns[before], self._t_ns[after] + self._off_ns[after]

    @property
    def first_ns(self) -> int:
        """The time of the first poll."""
        return self._t_ns[0]

    def older_than(self, offset: int) -> int | None:
        """When the first poll saw the message at this offset, if the history begins with it; None if it is of later."""
        return self._t_ns[0] + self._off_ns[0] if self._ends and offset < self._ends[0] else None

    def _after(self, offset: int) -> int | None:
        """Index of the first sample that has the message; None without one before it."""
        after = bisect_right(self._ends, offset)
        return after if 0 < after < len(self._ends) else None
