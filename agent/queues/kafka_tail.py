"""Duplicates and order of new records, by a value with their id and one with their number: what was produced.

It is a consumer without a group, as in agent/queues/kafka_records.py. librdkafka fetches new records between two polls,
up to ``_QUEUED_KIB``; a poll takes what is there, so it never waits for the brokers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.common.fairness import UpperBound
from agent.queues.clock_ids import ClockIds
from agent.queues.kafka_client import READING, Key, made
from agent.queues.message_values import value_at, whole
from agent.queues.order import MessageArrival, MessageOrder
from agent.queues.queue import Row

#: Records of all partitions that are known at the first poll; of a poll; and those that are taken at a time.
FIRST, MOST, _AT_ONCE = 1000, 5000, 200
#: Of keys, values and headers, in a poll.
MOST_BYTES = 2 << 20
#: What librdkafka holds between two polls.
_QUEUED_KIB = 2048
#: A partition that is this many records behind is read from its end on; those between are ``unread``.
_SKIP = 4 * MOST
#: Topics whose records may not be read are tried again after this time.
_RETRY_NS = 60_000_000_000
#: Partitions of which the place is known.
_PLACES = 4096
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "queues",
        "records of Kafka read in one poll to find duplicates",
        MOST,
        f"the next poll continues, as it does after 2 MiB; if more than {_SKIP:,} records of a partition are left,"
        " they are skipped",
        "`message_order.unread`",
    ),
)
Headers = Sequence[tuple[str, bytes | None]]
_HEADER = "header:"
_SETTINGS = {
    **READING,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "fetch.message.max.bytes": 1 << 18,
    "fetch.wait.max.ms": 500,
    "queued.max.messages.kbytes": _QUEUED_KIB,
}


@dataclass(frozen=True)
class RecordField:
    """Where a record has a value: in a header, or at a path of its value, which is then JSON."""

    header: str = ""
    path: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> RecordField:
        """``order/id`` or ``header:message-id``. Raises ValueError."""
        header = text.startswith(_HEADER)
        name = text.removeprefix(_HEADER)
        found = cls(header=name) if header else cls(path=tuple(name.split("/")))
        if not all(found.path or (name,)):
            raise ValueError("must be a path in JSON, such as order/id, or header:NAME")
        return found

    def __str__(self) -> str:
        return f"{_HEADER}{self.header}" if self.header else "/".join(self.path)

    def of(self, value: bytes | None, headers: Headers) -> str | int | None:
        """None if the record has none. Of headers of the same name, the last counts."""
        if self.header:
            value = next((text for name, text in reversed(headers) if name == self.header), None)
        return None if value is None else value_at(value, self.path)


class RecordTail:
    """number: None if only duplicates are of interest. It is kept when the connection ends: ``close`` ends that."""

    def __init__(self, message: RecordField, number: RecordField | None) -> None:
        self._message, self._number = message, number
        self._order, self.ids = MessageOrder(), ClockIds()
        self._consumer: Any = None
        self._assigned: frozenset[Key] = frozenset()
        self._next: dict[Key, int] = {}  # the offset to read next
        self._refused: dict[str, int] = {}  # when it was, by topic
        self._without: Counter[str] = Counter()  # records without an id in the last poll, by topic
        self._polled_ns = 0

    def read(self, ends: Mapping[Key, int], settings: Callable[[], Mapping[str, object]], now_ns: int) -> list[Row]:
        """Rows of ``message_order`` of the records that came. ends: the end of each partition; one that is missing for
        a poll is read on later. settings: makes those of librdkafka, for a new connection. now_ns: CLOCK_BOOTTIME.
        Raises what ``settings`` raises, and KafkaDown if librdkafka refuses them.
        """
        self._without.clear()
        self._refused = {topic: at for topic, at in self._refused.items() if now_ns - at < _RETRY_NS}
        unread = self._places({key: end for key, end in ends.items() if key[0] not in self._refused}, settings)
        self._take(now_ns)
        took_ns, self._polled_ns = now_ns - (self._polled_ns or now_ns), now_ns
        rows: list[Row] = [
            {
                **columns,
                "destination": topic,
                "partition": str(number),
                "interval_ns": took_ns,
            }
            for topic, number, _, columns in self._order.rows()
        ]
        return [
            *rows,
            *({"destination": t, "partition": str(p), "messages": 0, "unread": n} for (t, p), n in unread.items()),
        ]

    def problems(self) -> list[tuple[str, str]]:
        """By topic, what the last ``read`` could not find."""
        return [
            *(
                (topic, f"{n} new records have no {self._message}: the setting id")
                for topic, n in self._without.items()
            ),
            *((topic, "not allowed: the setting id needs the right Read on the topic") for topic in self._refused),
        ]

    def close(self) -> None:
        self._consumer, self._assigned = None, frozenset()

    def _places(self, ends: Mapping[Key, int], settings: Callable[[], Mapping[str, object]]) -> Counter[Key]:
        """Where to read on. Returns what is skipped."""
        unread, moved = Counter[Key](), False
        first = FIRST // max(1, sum(key not in self._next for key in ends))
        for key, end in ends.items():
            at = self._next.get(key)
            place = max(0, end - first) if at is None else at
            if place > end:  # the topic was made anew, or its broker lost records
                place = end
            elif end - place > _SKIP:
                unread[key], place = end - place, end
            moved |= place != at
            self._next[key] = place
        if moved or self._assigned != ends.keys():
            from confluent_kafka import Consumer, TopicPartition

            if self._consumer is None:
                self._consumer = made(Consumer, {**_SETTINGS, **settings()})
            self._consumer.assign([TopicPartition(*key, self._next[key]) for key in ends])
            self._assigned = frozenset(ends)
        if len(self._next) > _PLACES:
            self._next = {key: self._next[key] for key in ends}
        return unread

    def _take(self, now_ns: int) -> None:
        left, room = MOST, MOST_BYTES
        while self._consumer is not None and left > 0 and room > 0:
            some = self._consumer.consume(min(left, _AT_ONCE), 0)
            if not some:
                return
            left -= len(some)
            room -= sum(self._see(message, now_ns) for message in some)

    def _see(self, message: Any, now_ns: int) -> int:
        """Its bytes."""
        key, error = (message.topic(), message.partition()), message.error()
        if key not in self._next:
            return 0  # an error of a connection
        if error is not None:
            if error.name() == "_PARTITION_EOF":  # markers of transactions may be before it
                self._next[key] = max(self._next[key], message.offset())
            elif error.name() == "TOPIC_AUTHORIZATION_FAILED":
                self._refused[key[0]] = now_ns
            return 0
        value, headers = message.value(), message.headers() or ()
        if message.offset() >= self._next[key]:
            self._next[key] = message.offset() + 1
            number = self._number.of(value, headers) if self._number is not None else None
            self._add(key, self._message.of(value, headers), number, message.timestamp()[1], now_ns)
        return len(value or b"") + len(message.key() or b"") + sum(len(text or b"") for _, text in headers)

    def _add(self, key: Key, message: str | int | None, number: str | int | None, record_ms: int, now_ns: int) -> None:
        topic, partition = key
        if message is None:
            self._without[topic] += 1
            return
        self.ids.see(topic.encode(), (number, message), record_ms)
        self._order.add(MessageArrival(topic, partition, None, None, str(message), whole(number), now_ns))
