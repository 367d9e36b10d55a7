"""The lag of one consumer group of a Redis stream. Pure.

By ids, where they decide: a group at or behind the last entry has no lag, one before the first has XLEN. Between these
the server's own counter (`XINFO GROUPS` lag, since 7.0) is used once it was verified, since it is not reliable:
  - it is NULL after an XDEL ahead of the group, and for a group that was set to an arbitrary id;
  - after undelivered entries were trimmed it counts removed entries, and stays wrong when the group has read on
    (redis/redis#13957, valkey-io/valkey#1951);
  - it is whatever XGROUP ... ENTRIESREAD or XSETID set, even negative (redis/redis#14257).
It is verified whenever the ids decide, and else by a count (redis_walk.py), of small backlogs every five minutes. Where
the counter is wrong, the count is used. redis_exporter takes the counter as it is, and NULL as 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agent.queues.redis_reading import Id, Stream
from agent.queues.redis_walk import Counting

#: XGROUP SETID ... ENTRIESREAD can make a verified counter wrong at any time.
VERIFY_NS, VERIFY_ENTRIES = 300_000_000_000, 2_500


@dataclass
class Lag:
    """Kept between polls. value: entries that were not delivered; at_least: its lower bound if it is not exact, None if
    it is; reason: why it is not exact, or empty. removed: entries that were removed before they were delivered.
    """

    value: int | None = None
    at_least: int | None = None
    reason: str = ""
    removed: int = 0
    verified: bool = False
    counting: Counting | None = None
    _delivered: Id = (0, 0)
    _read: int | None = None
    _last: Id | None = None
    _added: int | None = None
    _now_ns: int = 0
    _verified_ns: int = 0

    def see(self, info: dict[str, Any], delivered: Id, stream: Stream, now_ns: int) -> None:
        """A poll: the group's ``XINFO GROUPS`` and position. Decides by the ids, or prepares a count (``counting``),
        after which ``judge`` decides.
        """
        raw, read = info.get("lag"), info.get("entries-read")
        if any(not isinstance(given, int | None) for given in (raw, read)):
            raise ValueError("no counters")
        self._doubt(read, delivered, stream)
        self._delivered, self._read, self._now_ns = delivered, read, now_ns
        self._last, self._added = stream.last_generated, stream.added
        self.at_least, self.reason, self.removed = None, "", 0
        if stream.last is None or delivered >= stream.last:
            self.value, self.counting = 0, None
            self._verify(raw == 0)
        elif stream.first is not None and delivered < stream.first:
            self.value, self.counting = stream.length, None
            self._verify(raw == stream.length)
            self.removed = max(0, raw - stream.length) if raw is not None else 0
        else:
            old = raw is not None and raw <= VERIFY_ENTRIES and now_ns - self._verified_ns >= VERIFY_NS
            self.verified &= _possible(raw, stream) and not old
            if self.verified:
                self.value, self.counting = raw, None
            elif self.counting is None:
                self.counting = Counting(delivered, stream, now_ns)
            else:
                self.counting.move(delivered, stream, now_ns)

    def judge(self, info: dict[str, Any], stream: Stream) -> None:
        """After this poll's part of the count."""
        if self.counting is None:
            return
        raw, read = info.get("lag"), info.get("entries-read")
        least, most = self.counting.walk.bounds(stream)
        consistent = raw is not None and stream.added is not None and read is not None and raw == stream.added - read
        if least == most:
            self.value = most
            if consistent and raw == most and self.counting.walk.removed(stream) == 0:
                self.counting = None
                self._verify(True)
            return
        possible = raw is not None and _possible(raw, stream) and least <= raw <= most
        self.at_least, self.value = least, raw if possible else most
        self.reason = (
            "its entries are too large to be counted"
            if self.counting.walk.too_large
            else _why(raw, read, stream, possible)
        )

    def _verify(self, right: bool) -> None:
        self.verified, self._verified_ns = right, self._now_ns

    def _doubt(self, read: int | None, delivered: Id, stream: Stream) -> None:
        """Whether the counter may have become wrong since the previous poll: it, or the group's position, was set, or
        entries behind the former position were removed, perhaps before they were delivered.
        """
        was_set = delivered < self._delivered or (read is not None and self._read is not None and read < self._read)
        was_set |= delivered == self._delivered and read != self._read
        was_set |= stream.last_generated == self._last and stream.added != self._added
        passed = stream.first is not None and self._delivered < stream.first <= delivered
        if was_set or passed:
            self.verified = False


def _possible(raw: int | None, stream: Stream) -> bool:
    """Whether a counter can be right for a position between the first and the last entry."""
    return raw is not None and 1 <= raw <= stream.length - 1


def _why(raw: int | None, read: int | None, stream: Stream, possible: bool) -> str:
    """At most 64 characters."""
    if stream.added is None:
        return "being counted: servers before Redis 7 do not count"
    if possible:
        return "the server's counter is not verified yet"
    if read is None:
        return "being counted: the group was set to an id inside the stream"
    if read > stream.added:
        return "being counted: ENTRIESREAD is more than was ever added"
    if raw is None:
        return "being counted: entries were deleted ahead of the group"
    return "being counted: the server's counter is off (redis#13957)"
