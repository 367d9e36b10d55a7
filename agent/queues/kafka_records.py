"""Reads single records of Kafka for their timestamps, within a budget.

It is a consumer without a group: it commits nothing, and is no member of any group. The contents of records are dropped
unread.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from agent.common.clocks import boot_ns
from agent.common.fairness import UpperBound
from agent.queues.age_bounds import EARLIEST_S
from agent.queues.kafka_client import READING, Key, made

#: Of the values that are fetched in a poll. The budget of time alone would allow any number of large records.
MOST_BYTES = 2 << 20
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "queues",
        "bytes of Kafka records read in one poll for their timestamps",
        MOST_BYTES,
        "the next poll reads other partitions; until then `inexact_reason` has the lower bound of the age",
        "`queue_lag.inexact_reason`",
        unit="bytes",
    ),
)
#: Partitions at a time: with more, librdkafka stalls.
_AT_ONCE = 20
_SETTINGS = {
    **READING,
    "auto.offset.reset": "error",
    "check.crcs": False,
    # The broker sends at least one batch of records a request, however large it is.
    "fetch.message.max.bytes": 1024,
    "fetch.wait.max.ms": 5,
    "queued.max.messages.kbytes": 256,
}


class FirstRecord(NamedTuple):
    """The first record at or behind an offset. offset: its own; if there is none, the end of the partition. t_ns: its
    timestamp, as CLOCK_BOOTTIME; None if it has none, or there is no record. basis: whose clock that is: log_append
    (the broker's) or create (the producer's); empty if there is no record. wall_ms: the timestamp itself, ms since
    1970.
    """

    offset: int
    t_ns: int | None = None
    basis: str = ""
    wall_ms: int | None = None

    @property
    def dated_ns(self) -> int | None:
        """``t_ns`` for an age: None also for a timestamp before 2001, of a producer that sends 0, or seconds for ms.
        The broker deletes the record by that timestamp nevertheless.
        """
        return self.t_ns if self.wall_ms is not None and self.wall_ms >= EARLIEST_S * 1000 else None


class RecordReader:
    """Raises KafkaDown if librdkafka refuses the settings."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        from confluent_kafka import Consumer

        self._consumer = made(Consumer, {**_SETTINGS, **settings})
        self._room = 0

    def read(self, offsets: Mapping[Key, int], budget_s: float) -> dict[Key, FirstRecord]:
        """The first record from each of these offsets, as far as the time and ``MOST_BYTES`` allow; a partition that
        fails is missing.
        """
        from confluent_kafka import TopicPartition

        until_s, self._room = time.monotonic() + budget_s, MOST_BYTES
        found: dict[Key, FirstRecord] = {}
        left = iter(offsets.items())
        while self._room > 0 and time.monotonic() < until_s and (some := dict(islice(left, _AT_ONCE))):
            self._consumer.assign([TopicPartition(*key, offset) for key, offset in some.items()])
            self._take(some, found, until_s)
        self._consumer.unassign()
        return found

    def _take(self, wanted: dict[Key, int], found: dict[Key, FirstRecord], until_s: float) -> None:
        from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE, KafkaError

        while wanted and self._room > 0 and (left_s := until_s - time.monotonic()) > 0:
            for message in self._consumer.consume(1, min(left_s, 0.05)):
                self._room -= len(message.value() or b"") if message.error() is None else 0
                key, error = (message.topic(), message.partition()), message.error()
                if key not in wanted or (error is None and message.offset() < wanted[key]):
                    continue
                del wanted[key]
                if error is None:
                    kind, t_ms = message.timestamp()
                    known = kind != TIMESTAMP_NOT_AVAILABLE and t_ms >= 0  # -1: a producer that sends none
                    t_ns = boot_ns() - time.time_ns() + t_ms * 1_000_000 if known else None
                    basis = "log_append" if kind == TIMESTAMP_LOG_APPEND_TIME else "create"
                    found[key] = FirstRecord(message.offset(), t_ns, basis, t_ms if known else None)
                elif error.code() == KafkaError._PARTITION_EOF:
                    found[key] = FirstRecord(message.offset())
