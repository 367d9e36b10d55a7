"""Entries of a Redis stream that were removed before a consumer group read them. Pure.

They count when the group's position is before the first entry of the stream, or before the end of an empty one: what
was between is gone, whoever reads meanwhile, since the stream was read before the group. They also count when the group
has not moved from one poll to the next but one: it read nothing, and may not have read and deleted entries while they
were counted. How many there were follows from the server's counters. They are compared with a poll before, since they
may be off by any number (redis_lag.py). XSETID sets them: none count while the ids show that all entries are there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from agent.queues.redis_reading import Id, Stream

_MOST = (1 << 63) - 1  # whatever the server's counters say


class _Seen(NamedTuple):
    """A poll that knew the lag. read: entries that the group has read; None if the server does not know."""

    lag: int
    added: int
    read: int | None
    delivered: Id
    first: Id | None  # of the stream

    def missing(self, now: _Seen) -> int:
        """Entries that were neither read since then nor wait now, as far as the counters say."""
        left = self.lag + now.added - self.added - now.lag
        if now.added < self.added or now.delivered < self.delivered:
            return 0  # the stream was made anew, or the group was set back
        if now.delivered == self.delivered:
            return left
        if now.read is None or self.read is None or now.read < self.read:
            return 0
        return left - (now.read - self.read)


class RemovedEntries:
    """Kept between polls. count: entries that were removed unread since the first poll; None until the lag is known."""

    def __init__(self) -> None:
        self.count: int | None = None
        self._before: _Seen | None = None
        self._unmoved: _Seen | None = None  # a later poll at the same position, if the group stays there

    def see(self, stream: Stream, info: dict[str, Any], delivered: Id, lag: int | None) -> None:
        """A poll. info: the group's ``XINFO GROUPS``, asked after the stream. lag: None if it is not exact."""
        added, read, last = stream.added, info.get("entries-read"), stream.last_generated
        if lag is None or added is None or last is None:
            return
        passed_over = delivered < last and (stream.first is None or delivered < stream.first)
        if not passed_over and (delivered > last or _added_meanwhile(info, added)):
            return  # the group is ahead of what is known of the stream
        now = _Seen(lag, added, read, delivered, stream.first)
        self.count = self.count or 0
        before, unmoved, self._unmoved = self._before, self._unmoved, None
        if before is None or (delivered != before.delivered and not passed_over):
            self._before = now
        elif passed_over:
            self._add(before, now, stream)
        else:
            if unmoved is not None:
                self._add(before, unmoved, stream)
            self._unmoved = now

    def _add(self, before: _Seen, now: _Seen, stream: Stream) -> None:
        if not _has_all(stream, before):
            self.count = min(_MOST, (self.count or 0) + max(0, before.missing(now)))
        self._before = now


def _has_all(stream: Stream, before: _Seen) -> bool:
    """Whether what the group had not read at a poll before was neither trimmed nor deleted."""
    first, deleted = stream.first, stream.max_deleted
    untrimmed = first is not None and (first == before.first or first <= before.delivered)
    return untrimmed and deleted is not None and deleted <= before.delivered


def _added_meanwhile(info: dict[str, Any], added: int) -> bool:
    """Whether entries were added between the questions about the stream and about the group."""
    lag, read = info.get("lag"), info.get("entries-read")
    return lag is not None and read is not None and lag + read != added
