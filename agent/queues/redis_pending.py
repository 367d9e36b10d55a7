"""Pending entries of one consumer group of a Redis stream: the oldest, and those that no longer exist. Pure.

An entry that is deleted or trimmed while it is pending stays in the group's list until somebody acknowledges it: no
consumer can process it, and its age means nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent.queues.redis_reading import Id, Stream, entry_id

#: The oldest pending entries of a group are read, and as many of all groups together: ``redelivered`` and ``deleted``
#: are lower bounds beyond that.
SAMPLE, SAMPLES = 100, 25_600
_SETTLED_MS = 5_000  # before Redis 7, which does not report deletions, entries are looked for after this time


class PendingEntries:
    """Kept between polls. oldest, idle_ms, holder: of the pending entries that exist. redelivered, deleted: of the
    sample; None if unknown.
    """

    def __init__(self) -> None:
        self._sample: list[tuple[Id, bytes, int, int]] = []
        self._deleted: set[Id] = set()
        self._asked: dict[Id, int] = {}
        self._turn = 0
        self.forget()

    def forget(self) -> None:
        """Nothing is known as of this poll."""
        self._sample = []
        self.oldest: Id | None = None
        self.idle_ms: int | None = None
        self.redelivered: int | None = None
        self.deleted: int | None = None
        self.holder = b""

    def none(self) -> None:
        """The group has no pending entry."""
        self.forget()
        self.redelivered = self.deleted = 0
        self._deleted, self._asked = set(), {}

    def read(self, sample: Sequence[Any], stream: Stream) -> None:
        """The reply to ``XPENDING stream group - + COUNT``. Raises errors of malformed replies."""
        if not all(isinstance(name, bytes) for _, name, _, _ in sample):
            raise ValueError("no consumer")
        self._sample = [(entry_id(entry), name, int(idle), int(n)) for entry, name, idle, n in sample[:SAMPLE]]
        ids = {one[0] for one in self._sample}
        self._deleted = {entry for entry in ids if entry in self._deleted or _trimmed(entry, stream)}
        self._asked = {entry: turn for entry, turn in self._asked.items() if entry in ids}
        self.redelivered = sum(n > 1 for *_, n in self._sample)

    def doubtful(self, stream: Stream) -> list[Id]:
        """Entries that may have been deleted: those that were not looked for lately come first."""
        newest = stream.max_deleted
        some = [
            entry
            for entry, _, idle_ms, _ in self._sample
            if entry not in self._deleted
            and stream.last_generated is not None
            and entry <= stream.last_generated
            and (entry <= newest if newest is not None else idle_ms >= _SETTLED_MS)
        ]
        return sorted(some, key=lambda entry: self._asked.get(entry, 0))

    def checked(self, entry: Id, there: bool) -> None:
        """An entry was looked for."""
        self._turn += 1
        self._asked[entry] = self._turn
        if not there:
            self._deleted.add(entry)

    def judge(self) -> None:
        """After all of this poll."""
        there = [one for one in self._sample if one[0] not in self._deleted]
        self.deleted = len(self._sample) - len(there)
        if there:
            self.oldest, self.holder = there[0][:2]
            self.idle_ms = max(idle for _, _, idle, _ in there)


def _trimmed(entry: Id, stream: Stream) -> bool:
    """Whether it is before the first entry. A pending entry that was added after ``stream`` was read is not."""
    generated = stream.last_generated
    return generated is not None and entry <= generated and (stream.first is None or entry < stream.first)
