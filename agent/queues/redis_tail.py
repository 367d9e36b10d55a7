"""Duplicates and order of a stream's entries, by a field with their id and one with their number: what was produced. At
the first poll the last ``FIRST`` entries are read, from then on all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import hiredis

from agent.common.fairness import UpperBound
from agent.common.resp import Reply, ReplyTooLarge
from agent.queues.clock_ids import ClockIds
from agent.queues.message_values import value_at, whole
from agent.queues.order import MessageArrival, MessageOrder
from agent.queues.queue import Row
from agent.queues.redis_reading import Id, Stream, after, entry_id, shown
from agent.queues.redis_reply_size import ReplySize
from agent.queues.redis_rights import Command

#: Entries of each stream at the first poll; of all streams in a poll; of one command.
FIRST, MOST, _AT_ONCE = 1000, 5000, 1000
#: Commands for one stream in a poll, and refused replies in a poll, each of up to 8 MiB; the next poll continues.
_COMMANDS, _REFUSED = 64, 4
#: A stream that is this many entries ahead of what was read is read from its end on; those between are ``unread``.
_SKIP = 4 * MOST
#: Streams of which the place is known; one that is missing in a poll is read on later.
_PLACES = 4096
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "queues",
        "entries of Redis streams read in one poll to find duplicates",
        MOST,
        f"the next poll continues; if more than {_SKIP:,} entries are left, or one is larger than a reply may be, they"
        " are skipped",
        "`message_order.unread`",
    ),
)
Ask = Callable[[Sequence[Command]], list[Reply]]


@dataclass(frozen=True)
class EntryField:
    """A field of an entry, or a value in it if it is JSON: ``order`` or ``body/order/id``."""

    name: bytes
    pointer: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> EntryField:
        name, *pointer = text.split("/")
        return cls(name.encode(), tuple(pointer))

    def __str__(self) -> str:
        return "/".join([self.name.decode(errors="replace"), *self.pointer])

    def of(self, entry: list[bytes]) -> str | int | None:
        """The value; None if the entry has none."""
        try:
            text = entry[entry[::2].index(self.name) * 2 + 1]
        except ValueError:
            return None
        return value_at(text, self.pointer)


class Tail:
    """number: None if only duplicates are of interest."""

    def __init__(self, message: EntryField, number: EntryField | None) -> None:
        self._message, self._number = message, number
        self._order, self.ids = MessageOrder(), ClockIds()
        self._read: dict[bytes, tuple[Id, int]] = {}  # the last id that was read, and how many were added until then
        self._sizes: dict[bytes, ReplySize] = {}  # of streams of which a reply was too large
        self._left, self._refused, self._polled_ns = MOST, 0, 0
        self._without: Counter[bytes] = Counter()  # entries without an id in the last poll, by stream
        self._unread: Counter[bytes] = Counter()  # entries that were skipped, by stream

    def read(self, streams: Sequence[Stream], ask: Ask, now_ns: int) -> list[Row]:
        """Rows of ``message_order`` of the new entries. now_ns: CLOCK_BOOTTIME. Raises RedisDown; the next poll then
        goes on where this one ended.
        """
        self._left, self._refused = MOST, 0
        self._without.clear()
        turn = now_ns % len(streams) if streams else 0
        for stream in [*streams[turn:], *streams[:turn]]:
            if self._refused >= _REFUSED:
                break
            if stream.name in self._read or stream.length <= FIRST:
                self._read_new(stream, ask, now_ns)
            else:
                self._read_end(stream, ask, now_ns)
        if len(self._read) > _PLACES or len(self._sizes) > _PLACES:
            names = {one.name for one in streams}
            self._read = {name: at for name, at in self._read.items() if name in names}
            self._sizes = {name: size for name, size in self._sizes.items() if name in names}
        took_ns, self._polled_ns = now_ns - (self._polled_ns or now_ns), now_ns
        rows: list[Row] = [
            {**columns, "destination": shown(name), "interval_ns": took_ns}
            for name, _, _, columns in self._order.rows()
        ]
        unread, self._unread = self._unread, Counter()
        return [*rows, *({"destination": shown(name), "messages": 0, "unread": n} for name, n in unread.items())]

    def _read_end(self, stream: Stream, ask: Ask, now_ns: int) -> None:
        """The end of a stream with more than ``FIRST`` entries; at a later poll if this one has read enough. Those of
        the last ``FIRST`` that a reply has no room for are ``unread``.
        """
        last = stream.last_generated or stream.last
        if last is None or self._left < FIRST:
            return
        most = min(FIRST, self._at_once(stream.name))
        entries, too_large = self._entries(stream.name, ("XREVRANGE", "+", "-"), most, FIRST, ask)
        if too_large and most > 1:
            return
        entries = entries or []
        self._take(stream.name, entries[::-1], now_ns)
        if too_large or most < FIRST:
            self._unread[stream.name] += FIRST - len(entries)
        # Entries may have come since ``last`` was asked for.
        self._read[stream.name] = max([last, *(entry_id(one[0]) for one in entries[:1])]), stream.added or 0

    def _read_new(self, stream: Stream, ask: Ask, now_ns: int) -> None:
        """The new entries of a stream."""
        last, added = stream.last_generated or stream.last, stream.added
        if last is None:
            return
        at, count = self._read.get(stream.name, ((0, 0), (added or 0) - stream.length))
        if at > last:  # its server lost entries, or the stream was deleted and made anew
            at, count = last, added or 0
        if added is not None and added - count > _SKIP:
            self._unread[stream.name] += added - count
            at, count = last, added
        self._read[stream.name] = at, count
        for _ in range(_COMMANDS):
            if at >= last or self._left <= 0:
                return
            most = min(self._left, self._at_once(stream.name))
            left = most if added is None else max(1, added - count)
            entries, too_large = self._entries(stream.name, ("XRANGE", after(at), "+"), most, left, ask)
            if too_large and most == 1:  # the ids behind this entry are not known without its content: skip to the end
                self._unread[stream.name] += max(1, (added or 0) - count)
                self._read[stream.name] = last, added or 0
                return
            if entries is None:
                return
            self._take(stream.name, entries, now_ns)
            if len(entries) < most:
                at, count = max([last, *(entry_id(entry[0]) for entry in entries[-1:])]), added or 0
            else:
                at, count = entry_id(entries[-1][0]), count + len(entries)
            self._read[stream.name] = at, count

    def problems(self) -> list[tuple[bytes, str]]:
        """By stream, what the last ``read`` could not find."""
        return [
            (stream, f"{n} new entries have no {self._message}: option id of the server's URL")
            for stream, n in self._without.items()
        ]

    def _at_once(self, stream: bytes) -> int:
        """Entries that one command reads."""
        size = self._sizes.get(stream)
        return _AT_ONCE if size is None else size.number

    def _entries(
        self, stream: bytes, part: tuple[str, str, str], most: int, left: int, ask: Ask
    ) -> tuple[list[Any] | None, bool]:
        """(the reply, whether it is too large; then fewer are read at a time). None: there is no reply. part: the
        command, and between which ids. left: entries that the stream is expected to have there.
        """
        command, start, end = part
        try:
            (reply,) = ask([(command, stream, start, end, "COUNT", most)])
        except ReplyTooLarge:
            self._refused += 1
            size = self._sizes.setdefault(stream, ReplySize(_AT_ONCE))
            if most == 1:
                size.refused_single()
            else:
                size.refused(min(most, left))
            return None, True
        if stream in self._sizes:
            self._sizes[stream].received()
            if self._sizes[stream].is_whole:
                del self._sizes[stream]
        return (None if isinstance(reply, hiredis.ReplyError) else reply), False

    def _take(self, stream: bytes, entries: list[Any], now_ns: int) -> None:
        self._left -= len(entries)
        for at, entry in entries:
            message = self._message.of(entry)
            if message is None:
                self._without[stream] += 1
                continue
            number = self._number.of(entry) if self._number is not None else None
            self.ids.see(stream, (number, message), entry_id(at)[0])
            self._order.add(MessageArrival(stream, None, None, None, str(message), whole(number), now_ns))
