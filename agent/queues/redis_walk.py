"""Counts the entries that a consumer group has not read by reading them, where the server's counter cannot be trusted.

XRANGE is the only command that counts a part of a stream without writing, and it sends the entries' contents. So a walk
has a budget of entries, bytes and time per poll, goes on at the next poll, and keeps what it has counted: the entries
between the group's position and a cursor, in pages. The group's position only moves forward, which drops pages; new
entries only arrive at the end, behind the cursor.

Entries that are removed from the counted part are not seen. But their number is: the length of the stream is then
shorter than what was added to it. The count is then bounded from both sides, and counted anew.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import hiredis

from agent.common.fairness import UpperBound
from agent.common.resp import ReplyTooLarge
from agent.queues.redis_reading import Id, Stream, after, entry_id, shown_id
from agent.queues.redis_rights import Command

#: Per poll of a server, over all groups. 5,000 small entries take about 5 ms here and 2 ms on the server.
MAX_ENTRIES, MAX_BYTES, MAX_S = 5_000, 1 << 20, 0.05
PAGE_ENTRIES, PAGE_BYTES = 500, 64 << 10
FIRST_ENTRIES, GROWTH = 8, 4  # the size of entries is not known before the first page
PART_BYTES = 16  # beside the content of each field and value
AT_ONCE = 8  # pages of one round trip
MAX_PAGES = 20_000  # that are kept, of all groups of a server: at least 10 million entries of up to 128 bytes
RECOUNT_NS = 60_000_000_000  # between two counts of a backlog that takes more than one poll
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "queues",
        "entries read in one poll to count a backlog (and 1 MiB, and 50 ms)",
        MAX_ENTRIES,
        "the next poll continues; `lag_messages` has bounds",
        "`queue_lag.lag_at_least`, `inexact_reason`",
    ),
)


@dataclass
class _Page:
    end: Id
    entries: int
    size: int  # bytes


class Walk:
    """The entries after ``start``, as far as they were counted."""

    def __init__(self, start: Id, stream: Stream) -> None:
        self.pages: deque[_Page] = deque()
        self._next = self._asked = FIRST_ENTRIES
        self.too_large = False  # not even one entry fits into a reply
        self._begin(start, stream)

    def _begin(self, start: Id, stream: Stream) -> None:
        self.pages.clear()
        self.start, self.counted = start, 0
        self._recount = False  # the first page begins before ``start``
        self._begun, self._new = stream, 0  # new: counted entries that were added since then
        self.done = False  # it was counted to the end of the stream once
        self._whole_added: int | None = None  # entries added to the stream when that was last so

    @property
    def cursor(self) -> Id:
        return self.pages[-1].end if self.pages else self.start

    def move(self, delivered: Id, stream: Stream) -> None:
        """The group's position is ``delivered`` now. Begins anew if it moved back, or beyond the cursor."""
        if delivered < self.start or (delivered > self.cursor and delivered != self.start):
            self._begin(delivered, stream)
            return
        while self.pages and self.pages[0].end <= delivered:
            self.counted -= self.pages.popleft().entries
            self._recount = False
        self._recount |= bool(self.pages) and delivered != self.start
        self.start = delivered

    def command(self, stream: Stream, most: int) -> Command | None:
        """Reads the next page, of at most so many entries; None if all is counted."""
        assert stream.last is not None
        if self.too_large:
            return None
        if self._recount:
            start, end, self._asked = self.start, self.pages[0].end, max(1, self.pages[0].entries)
        elif self.cursor < stream.last:
            start, end, self._asked = self.cursor, stream.last, min(self._next, most)
        else:
            return None
        return "XRANGE", stream.name, after(start), shown_id(end), "COUNT", self._asked

    def take(self, entries: Sequence[Any], stream: Stream) -> tuple[int, int]:
        """The reply to ``command``. Returns its entries and bytes. Raises errors of malformed replies."""
        n = len(entries)
        size = sum(PART_BYTES + len(part) for entry in entries for part in (entry[0], *entry[1]))
        if n > self._asked:
            raise ValueError("more entries than were asked for")
        if self._recount:
            self.counted += n - self.pages[0].entries
            self.pages[0].entries, self.pages[0].size = n, size
            self._recount = False
            return n, size
        assert stream.last is not None
        end = entry_id(entries[-1][0]) if n == self._asked else stream.last
        if end <= self.cursor:
            raise ValueError("entries out of order")
        begun = self._begun.last
        self._new += n if begun is None else sum(entry_id(entry[0]) > begun for entry in entries)
        self.counted += n
        last = self.pages[-1] if self.pages else None
        if last is not None and last.entries + n <= PAGE_ENTRIES and last.size + size <= PAGE_BYTES:
            last.end, last.entries, last.size = end, last.entries + n, last.size + size
        else:
            self.pages.append(_Page(end, n, size))
        if n:
            self._next = max(1, min(PAGE_BYTES * n // max(1, size), self._next * GROWTH, PAGE_ENTRIES))
        return n, size

    def shrink(self) -> None:
        """The reply was too large to be read."""
        self.too_large = self._asked == 1
        self._next = 1
        if self._recount:
            self._begin(self.start, self._begun)

    def whole(self, stream: Stream) -> bool:
        """Whether it is counted to the end of the stream."""
        return not self._recount and (stream.last is None or self.cursor >= stream.last)

    def removed(self, stream: Stream) -> int | None:
        """Entries that were removed from the stream since the walk began, perhaps from the counted part; None if
        unknown. Negative if the stream's counters were set.
        """
        if stream.max_deleted is not None and stream.max_deleted <= self.start:
            return 0  # trimming removes the oldest entries only
        if stream.added is not None and self._begun.added is not None:
            added = stream.added - self._begun.added
        elif self.whole(stream):
            added = self._new
        else:
            return None
        return self._begun.length + added - stream.length

    def bounds(self, stream: Stream) -> tuple[int, int]:
        """The least and the largest number of entries after ``start``; equal if it is known. For a position between the
        first and the last entry of the stream.
        """
        removed, whole, most = self.removed(stream), self.whole(stream), stream.length - 1
        if whole:
            self.done, self._whole_added = True, stream.added
        unsure = self.pages[0].entries if self._recount else 0
        least = 1 if removed is None else self.counted - unsure - abs(removed)
        if whole or (self._recount and stream.last is not None and self.cursor >= stream.last):
            most = min(most, self.counted)
        elif stream.added is not None and self._whole_added is not None:
            most = min(most, self.counted + max(0, stream.added - self._whole_added))
        most = max(1, most)
        return max(1, min(least, most)), most


class Counting:
    """The walk of one group. After a removal from the counted part another walk begins; it replaces the first when it
    is done.
    """

    def __init__(self, delivered: Id, stream: Stream, now_ns: int) -> None:
        self.walk = Walk(delivered, stream)
        self.again: Walk | None = None
        self._begun_ns = now_ns
        self._removed = False

    def move(self, delivered: Id, stream: Stream, now_ns: int) -> None:
        """To the state of this poll."""
        for walk in filter(None, (self.walk, self.again)):
            walk.move(delivered, stream)
        if self.again is None and self.walk.done and (self.walk.removed(stream) or self._removed):
            small = self.walk.counted <= MAX_ENTRIES // 2
            if small or now_ns - self._begun_ns >= RECOUNT_NS:
                self.again, self._begun_ns = Walk(delivered, stream), now_ns

    @property
    def current(self) -> Walk:
        return self.again or self.walk

    def settle(self, stream: Stream) -> None:
        """After the pages of this poll."""
        if self.again is not None and self.again.whole(stream):
            self.walk, self.again = self.again, None
        self._removed = bool(self.walk.removed(stream))


def walk(
    counted: Sequence[tuple[Stream, Counting]],
    ask: Callable[[Sequence[Command]], Sequence[Any]],
    turn: int,
) -> None:
    """Reads pages within the budget of one poll. turn: rotates who comes first."""
    until_s, entries, size = time.monotonic() + MAX_S, MAX_ENTRIES, MAX_BYTES
    pages = sum(len(one.pages) for _, counting in counted for one in (counting.walk, counting.again) if one)
    at = turn % len(counted) if counted else 0
    waiting = deque([*counted[at:], *counted[:at]])
    while waiting and entries > 0 and size > 0 and pages < MAX_PAGES and time.monotonic() < until_s:
        some: list[tuple[Stream, Counting]] = []
        commands: list[Command] = []
        while waiting and len(commands) < AT_ONCE:
            stream, counting = waiting.popleft()
            command = counting.current.command(stream, max(1, entries // AT_ONCE))
            if command is not None:
                some.append((stream, counting))
                commands.append(command)
        if not commands:
            break
        try:
            replies = ask(commands)
        except ReplyTooLarge:
            for _, counting in some:
                counting.current.shrink()
            return
        for (stream, counting), reply in zip(some, replies, strict=True):
            if isinstance(reply, hiredis.ReplyError):
                continue
            n, taken = counting.current.take(reply, stream)
            entries, size, pages = entries - n, size - taken, pages + 1
            waiting.append((stream, counting))
    for stream, counting in counted:
        counting.settle(stream)
