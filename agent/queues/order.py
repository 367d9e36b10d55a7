"""Which messages of a queue came twice, and which came out of order, by their ids and numbers. Pure, without numpy.

A message is a duplicate if its id came before. It is out of order if its number is below a number that came before: a
reordered packet of RFC 4737, section 3. A duplicate is never out of order.
"""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
#: Ids that are remembered, 16 bytes each: they take memory as they come. An id is forgotten when eight newer ones have
#: its hash's place. Of the last quarter of this number, one in 4,000 is.
IDS = 1 << 18
_WAYS = 8
_PLACES = IDS // _WAYS
_WHO_BITS = 12
#: Consumers of which it is known that they had a message first.
MOST_CONSUMERS = (1 << _WHO_BITS) - 1
#: Sequences (of a queue, partition, producer and consumer) whose highest number is known.
MOST_SEQUENCES = 4096
#: A number up to 1, after numbers from here on, begins anew: the producer was restarted.
_RESTARTED = 16
#: That a column holds.
_LARGEST = 2**63 - 1
#: Shortest interval of a row of ``message_order``.
INTERVAL_NS = 1_000_000_000


class OrderedQueue(ABC):
    """A queue whose messages can be read without taking them."""

    @abstractmethod
    def order(self) -> Sequence[Mapping[str, object]]:
        """Rows of ``message_order`` of the messages that the last poll read."""


class Earlier(NamedTuple):
    """When a message came first, CLOCK_BOOTTIME ns (cut to a ms), and to whom (None: not known any more)."""

    t_ns: int
    consumer: Hashable


class SeenIds:
    """A set-associative cache of the ids of messages. Keys are hashed to 64 bits: of 10^9 messages, one is taken for
    another with a probability of 10^-5.
    """

    def __init__(self) -> None:
        self._hashes, self._stamps = (memoryview(mmap.mmap(-1, 8 * IDS)).cast("Q") for _ in range(2))
        self._next = bytearray(_PLACES)
        self._numbers: dict[Hashable, int] = {}
        self._by_number: list[tuple[Hashable, int]] = [(None, 0)]  # and the ms from which the number is this one's
        self._turn = 0

    def add(self, key: Hashable, t_ns: int, consumer: Hashable) -> Earlier | None:
        """When the same key was added before; None if it was not."""
        hashed = hash(key) & ((1 << 64) - 1) or 1
        place = hashed % _PLACES
        at = place * _WAYS
        ways = self._hashes[at : at + _WAYS].tolist()
        if hashed in ways:
            stamp = self._stamps[at + ways.index(hashed)]
            ms, (who, since_ms) = stamp >> _WHO_BITS, self._by_number[stamp & MOST_CONSUMERS]
            return Earlier(ms * 1_000_000, who if ms >= since_ms else None)
        way = self._next[place]
        self._next[place] = (way + 1) % _WAYS
        self._hashes[at + way] = hashed
        ms = t_ns // 1_000_000
        self._stamps[at + way] = ms << _WHO_BITS | self._number(consumer, ms)
        return None

    def _number(self, consumer: Hashable, ms: int) -> int:
        """A number for the consumer; the oldest one is used again when there are no more."""
        number = self._numbers.get(consumer)
        if number is None:
            self._turn = self._turn % MOST_CONSUMERS + 1
            number = self._numbers[consumer] = self._turn
            if number < len(self._by_number):
                del self._numbers[self._by_number[number][0]]
                self._by_number[number] = consumer, ms
            else:
                self._by_number.append((consumer, ms))
        return number


class MessageArrival(NamedTuple):
    """One message. queue: what identifies it; partition: of the queue; sequence: what its number counts within the
    partition (a producer may have one of its own); consumer: to whom it came. number: None without one. t_ns:
    CLOCK_BOOTTIME. in_partition: another message may have the same id in another partition.
    """

    queue: Hashable
    partition: Hashable
    sequence: Hashable
    consumer: Hashable
    message: str
    number: int | None
    t_ns: int
    in_partition: bool = False


@dataclass
class _Counts:
    messages: int = 0
    duplicates: int = 0
    out_of_order: int = 0
    more: dict[str, Any] = field(default_factory=dict)


class MessageOrder:
    """Counts messages by (queue, partition, consumer) until ``rows``. Consumers of one group share the duplicates; a
    sequence is judged for each consumer by itself, because two of them may rightly be at different places.
    """

    def __init__(self) -> None:
        self._seen: SeenIds | None = None
        self._highest: dict[Hashable, tuple[int, int]] = {}  # and the restarts of the producer until then
        self._restarts: dict[Hashable, int] = {}
        self._counts: dict[tuple[Any, Any, Any], _Counts] = {}

    def has_room(self, queue: Hashable, partition: Hashable, consumer: Hashable, most: int) -> bool:
        """Whether messages of these can be counted, of at most so many rows."""
        return len(self._counts) < most or (queue, partition, consumer) in self._counts

    def add(self, one: MessageArrival) -> None:
        counts = self._counts.setdefault((one.queue, one.partition, one.consumer), _Counts())
        counts.messages += 1
        if self._seen is None:
            self._seen = SeenIds()
        place = (one.queue, one.partition) if one.in_partition else one.queue
        before = self._seen.add((place, one.message), one.t_ns, one.consumer)
        if before is not None:
            counts.duplicates += 1
            if counts.duplicates == 1:
                counts.more |= {"duplicate_id": one.message, "repeated_s": max(0, one.t_ns - before.t_ns) / 1e9}
                if before.consumer is not None:
                    counts.more["first"] = before.consumer
        elif one.number is not None and (behind := self._behind(one, one.number)):
            counts.out_of_order += 1
            behind = min(behind, _LARGEST)
            if behind > counts.more.get("behind", 0):
                counts.more |= {"out_of_order_id": one.message, "behind": behind}

    def _behind(self, one: MessageArrival, number: int) -> int:
        """How far the number is below the highest one of its sequence and consumer, which it else becomes; 0 if it is
        not below it. A restart of the producer is one for all consumers, whichever of them got its first message. Of
        the other consumers, a number in the upper half is a message of the former run that was still on its way.
        """
        sequence = one.queue, one.partition, one.sequence
        key = *sequence, one.consumer
        restarts = self._restarts.get(sequence, 0)
        highest, seen = self._highest.get(key, (number, restarts))
        if number < highest:
            if seen == restarts:
                if number > 1 or highest < _RESTARTED:
                    return highest - number
                restarts += 1
                _put(self._restarts, sequence, restarts)
            elif highest >= _RESTARTED and number > highest // 2:
                _put(self._highest, key, (number, seen))  # or the new run has come that far: it counts once
                return highest - number
            seen = restarts
        _put(self._highest, key, (number, seen))
        return 0

    def rows(self) -> list[tuple[Any, Any, Any, dict[str, Any]]]:
        """(queue, partition, consumer, columns of ``message_order``) since the last call. Beside the columns, ``first``
        is the consumer that had the duplicate first.
        """
        counts, self._counts = self._counts, {}
        return [
            (
                queue,
                partition,
                consumer,
                {"messages": c.messages, "duplicates": c.duplicates, "out_of_order": c.out_of_order, **c.more},
            )
            for (queue, partition, consumer), c in counts.items()
        ]


def _put(places: dict[Hashable, T], key: Hashable, value: T) -> None:
    """The oldest one is forgotten if there are too many."""
    if key not in places and len(places) >= MOST_SEQUENCES:
        del places[next(iter(places))]
    places[key] = value
