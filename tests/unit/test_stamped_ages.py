"""Ages by a time stamp of another clock than that of the server that is polled: one rule for all kinds of brokers."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import inf, isnan, nan
from typing import Any

import pytest

from agent.queues.age_bounds import AgeBounds
from agent.queues.brokers import kafka
from agent.queues.brokers.kafka import KafkaCluster, KafkaServer
from agent.queues.end_offsets import EndOffsets
from agent.queues.kafka_records import FirstRecord
from agent.queues.mapping import MappedQueues, MetricSource, read
from agent.queues.nats_ages import message_age
from agent.queues.nats_report import NatsStream
from agent.queues.postgresql_jobs import JobQueues
from agent.queues.redis_lists import ListQueues
from agent.queues.redis_reading import age_s

NOW_S = 1_700_000_000
SECOND = 10**9


def of_redis(at_s: float) -> float:
    return age_s((int(at_s * 1000), 0), NOW_S * 1000)


def of_redis_lists(at_s: float) -> Any:
    def ask(commands: Any) -> list[Any]:
        replies = {"LINDEX": json.dumps({"enqueued_at": at_s}).encode(), "LLEN": 1, "SMEMBERS": [], "ZRANGE": []}
        return [replies.get(command[0], 0) for command in commands]

    return ListQueues([("sidekiq", "a")]).rows(ask, NOW_S)[0]["oldest_undelivered_s"]


def of_kafka(at_s: float) -> float:
    cluster, key = KafkaCluster(KafkaServer(servers="127.0.0.1:9092")), ("t", 0)
    cluster._topics["t"], cluster._ends[key] = kafka._Topic(0, compacted=False), EndOffsets()
    now_ns = 900 * SECOND
    at_ns = now_ns + int((at_s - NOW_S) * SECOND)
    cluster._first_records[key, 3] = FirstRecord(3, at_ns, "create", int(at_s * 1000))
    return cluster._age(key, 3, 2, kafka._Offsets(5, 0, 5), now_ns)[0]


def of_nats(at_s: float) -> float:
    at_ns = int(at_s * SECOND)
    stream = NatsStream("", "s", None, 1, 1, at_ns, 1, at_ns, 0, 0, False, True, False, 0, 0, 0, False, ())
    age = message_age(1, stream, NOW_S * SECOND, AgeBounds(0.0, inf, False))
    return age.least if age.close else nan


@pytest.mark.parametrize("sequence", [1, 9])
def test_a_message_of_nats_is_not_younger_than_our_polls_that_saw_it(sequence: int) -> None:
    """The server's clock was set back."""
    at_ns = (NOW_S + 10) * SECOND
    stream = NatsStream("", "s", None, 9, 1, at_ns, 9, at_ns, 0, 0, False, True, False, 0, 0, 0, False, ())
    assert message_age(sequence, stream, NOW_S * SECOND, AgeBounds(599.95, inf, False)).age_s == 599.95


def of_postgresql(at_s: float) -> Any:
    (row,) = JobQueues().rows(["queue", "ready", "oldest"], [("q", 1, NOW_S - at_s)])
    return row["oldest_undelivered_s"]


def of_a_program(at_s: float) -> Any:
    mapped = MappedQueues("q", length=MetricSource.parse("/n"), oldest_at_s=MetricSource.parse("/at"))
    (row,) = read([mapped], json.dumps({"n": 1, "at": at_s}).encode(), NOW_S)
    return row.get("oldest_undelivered_s")


@pytest.mark.parametrize(
    "age_of",
    [of_redis, of_redis_lists, of_kafka, of_nats, of_postgresql, of_a_program],
)
def test_a_time_a_little_in_the_future_is_now_and_a_later_one_is_none(age_of: Callable[[float], float | None]) -> None:
    ages = [age_of(NOW_S + ahead_s) for ahead_s in (-7, 0, 30, 90)]
    assert [None if age is None or isnan(age) else age for age in ages] == [7, 0, 0, None]


def test_an_age_that_a_program_computed_is_not_negative() -> None:
    mapped = MappedQueues("q", length=MetricSource.parse("/*/n"), oldest_s=MetricSource.parse("/*/age"))

    def row(*ages: float) -> Any:
        (row,) = read([mapped], json.dumps([{"n": 1, "age": age} for age in ages]).encode(), NOW_S)
        return row

    assert [row(age).get("oldest_undelivered_s") for age in (7, 0, -1, -30)] == [7, 0, None, None]
    assert row(-1)["inexact_reason"] == "oldest_s is -1, not an age in seconds"
    assert row(-1, 5)["oldest_undelivered_s"] == 5  # a shard without messages
