"""Lag of Kafka's consumer groups against a real Kafka, with producers and consumers that know the truth. Counts are
prime, so that no doubling or halving goes unseen.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.common.clocks import boot_ns
from agent.queues.brokers import kafka as kafka_broker
from agent.queues.brokers.kafka import BROKER
from agent.queues.kafka_records import MOST_BYTES, RecordReader
from agent.queues.packing import TABLE
from agent.queues.poller_process import BrokerPoller
from agent.queues.queue import Queue
from tests.patience import PATIENCE, until
from tests.servers.kafka_server import OLDER, USERS, VERSION, Kafka, fetched
from tests.servers.polled import one, poll, until_drained, until_rows
from tests.servers.test_rabbitmq import Odd, _endless, _once

#: A consumer as users write them. Its arguments: the server, topics, group, protocol, seconds that a message takes.
CONSUMER = """
import sys, time
from confluent_kafka import Consumer
server, topics, group, protocol, busy_s = sys.argv[1:]
session = {"session.timeout.ms": 1000, "heartbeat.interval.ms": 300} if protocol == "classic" else {}
consumer = Consumer({"bootstrap.servers": server, "group.id": group, "group.protocol": protocol,
    "auto.offset.reset": "earliest", "auto.commit.interval.ms": 200, "topic.metadata.refresh.interval.ms": 500,
    "client.id": f"{group}-consumer", **session})
consumer.subscribe(topics.split(","))
while True:
    if consumer.poll(1) is not None:
        time.sleep(float(busy_s))
"""


@pytest.fixture(scope="module", params=[VERSION, OLDER])
def libraries(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fetched(tmp_path_factory.mktemp("kafka-libraries"), request.param)


@pytest.fixture(scope="module")
def kafka(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    server = Kafka(libraries, tmp_path_factory.mktemp("kafka"))
    yield server
    server.end()


@pytest.fixture
def opened(kafka: Kafka) -> Iterator[Callable[..., Queue]]:
    """opened(groups) polls these groups."""
    with contextlib.ExitStack() as ends:

        def begin(groups: str, topics: str = "") -> Queue:
            (queue,) = BROKER.sources([f"{kafka.address}?groups={groups}" + (f"&topics={topics}" if topics else "")])
            ends.callback(queue.close)
            return queue

        yield begin


@pytest.fixture
def consume(kafka: Kafka) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """consume(topics, group, protocol, busy_s) starts a consumer as a process."""
    with contextlib.ExitStack() as ends:

        def start(topics: str, group: str, protocol: str = "classic", busy_s: float = 0) -> subprocess.Popen[bytes]:
            given = [kafka.address, topics, group, protocol, str(busy_s)]
            one = subprocess.Popen([sys.executable, "-c", CONSUMER, *given])
            ends.callback(one.wait)
            ends.callback(one.kill)
            return one

        yield start


def create(kafka: Kafka, topic: str, partitions: int = 1, **config: str) -> None:
    from confluent_kafka.admin import NewTopic

    new = NewTopic(topic, partitions, 1, config={name.replace("_", "."): value for name, value in config.items()})
    kafka.admin.create_topics([new])[topic].result(20)


def produce(kafka: Kafka, topic: str, n: int, partition: int = 0, key: str = "k", **settings: Any) -> tuple[int, int]:
    """Times (CLOCK_BOOTTIME) before the first and after the last record was appended."""
    from confluent_kafka import Producer

    before = boot_ns()
    producer = Producer({"bootstrap.servers": kafka.address, "linger.ms": 5, **settings})
    for i in range(n):
        producer.produce(topic, f"v{i}", key, partition)
    assert producer.flush(20) == 0
    return before, boot_ns()


def commit(kafka: Kafka, group: str, topic: str, offset: int, partition: int = 0) -> None:
    kafka.commit(group, topic, {partition: offset})


def test_lag_is_what_is_behind_the_committed_offset(kafka: Kafka, opened: Callable[..., Queue]) -> None:
    create(kafka, "orders", 3)
    produce(kafka, "orders", 101, 0)
    produce(kafka, "orders", 37, 2)
    commit(kafka, "billing", "orders", 40, 0)
    commit(kafka, "billing", "orders", 37, 2)
    queue = opened("bill*")
    until_rows(queue, lambda rows: b"age" not in rows["inexact_reason"][0])  # it has read the first unread record
    before = boot_ns()
    first, last = poll(queue)
    after = boot_ns()
    assert (first["system"], first["destination"], first["consumer_group"]) == (b"kafka", b"orders", b"billing")
    assert (first["partition"], first["lag_messages"], first["exact"], first["inexact_reason"]) == (b"0", 61, 1, b"")
    assert (last["partition"], last["lag_messages"], last["lag_s"], last["lag_error_s"]) == (b"2", 0, 0, 0)
    assert (first["status"], first["group_state"], first["rebalances"]) == (b"ok", b"empty", 0)
    assert first["cluster"] == b"3Db5QLSqSZieL3rJBUUegA"
    assert first["peer"].tobytes() == b"\0" * 10 + b"\xff\xff\x7f\0\0\x01" + kafka.plain.to_bytes(2, "little")
    assert before < first["t_ns"] <= after
    assert 0 < first["poll_ns"] <= after - before
    produce(kafka, "orders", 13, 0)
    commit(kafka, "billing", "orders", 43, 0)
    second = poll(queue)[0]
    assert second["lag_messages"] == 71
    seconds = (second["t_ns"] - first["t_ns"]) / 1e9
    assert second["in_per_s"] * seconds == pytest.approx(13)
    assert second["out_per_s"] * seconds == pytest.approx(3)
    assert opened("bill*", "o*,x").poll()[0]["destination"] == b"orders"
    other = one(opened("bill*", "others"))
    assert (other["consumer_group"], other["reason"]) == (
        b"billing",
        b"no committed offsets in the topics of the setting",
    )


def test_the_time_of_a_lag_holds_the_truth(kafka: Kafka, opened: Callable[..., Queue]) -> None:
    create(kafka, "timed")
    produce(kafka, "timed", 11)
    commit(kafka, "clocks", "timed", 11)
    queue = opened("clocks")
    poll(queue)
    appended: list[tuple[int, int]] = []
    for turn in range(5):
        appended += [produce(kafka, "timed", 7)] * 7
        time.sleep(0.1)
        asked = boot_ns()
        row = one(queue)
        for offset in (0, 7 * turn):
            commit(kafka, "clocks", "timed", 11 + offset)
            asked = boot_ns()
            row = one(queue)
            assert row["lag_messages"] == len(appended) - offset
            before, after = appended[offset]
            assert (row["lag_s"] - row["lag_error_s"]) * 1e9 <= row["t_ns"] - before
            assert (row["lag_s"] + row["lag_error_s"]) * 1e9 >= asked - after
            assert row["oldest_undelivered_s"] == row["lag_s"]


@pytest.mark.parametrize("basis", ["create", "log_append"])
def test_the_time_of_records_older_than_our_history_is_theirs(
    kafka: Kafka, opened: Callable[..., Queue], basis: str
) -> None:
    clock = "CreateTime" if basis == "create" else "LogAppendTime"
    create(kafka, f"old-{basis}", message_timestamp_type=clock, retention_ms="7000000")
    appended = [produce(kafka, f"old-{basis}", 5) for _ in range(2)]
    commit(kafka, f"old-{basis}", f"old-{basis}", 3)
    queue = opened(f"old-{basis}")
    for offset in (3, 7):
        commit(kafka, f"old-{basis}", f"old-{basis}", offset)
        asked = boot_ns()
        row = one(queue)
        before, after = appended[offset // 5]
        assert row["lag_basis"] == TABLE.code("lag_basis", basis)
        assert (asked - after) / 1e9 - 0.002 <= row["lag_s"] <= (row["t_ns"] - before) / 1e9 + 0.002  # they are in ms
        assert isnan(row["lag_error_s"])
        assert row["retention_left_s"] == pytest.approx(7000 - row["lag_s"])
    (raw,) = BROKER.open(BROKER.server(f"kafka://{kafka.address}?groups=old-{basis}")).poll()
    assert raw["kept_s"] == pytest.approx(7000)


@pytest.mark.parametrize("clock", ["CreateTime", "LogAppendTime"])
def test_the_retention_of_the_first_unread_record_is_a_timer(kafka: Kafka, clock: str) -> None:
    """Also of a record that was appended while tickscope was there. A producer's clock is an hour behind."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    name = f"kept-{clock}"
    create(kafka, name, 2, message_timestamp_type=clock, retention_ms="90000000")
    commit(kafka, name, name, 0)
    (queue,) = BROKER.sources([f"{kafka.address}?groups={name}"])
    queue.poll()
    assert [row["timers"] for row in queue.timers()] == [0]  # it has read all
    producer = Producer({"bootstrap.servers": kafka.address})
    behind_ms = time.time_ns() // 1_000_000 - 3_600_000
    for n in range(7):
        producer.produce(name, b"x", partition=0, timestamp=behind_ms + n)
    assert producer.flush(20) == 0
    commit(kafka, name, name, 3)
    reader = Consumer({"bootstrap.servers": kafka.address, "group.id": "truth"})
    reader.assign([TopicPartition(name, 0, 3)])
    record = reader.poll(20 * PATIENCE)
    assert (record is not None, record.offset()) == (True, 3)
    _, at_ms = record.timestamp()
    reader.close()
    assert (at_ms == behind_ms + 3) == (clock == "CreateTime")

    due_ns = (at_ms + 90_000_000) * 1_000_000
    until(lambda: [row.get("due_wall_ns") for row in queue.timers()] == [due_ns], 60, 0.2, turn=queue.poll)
    (row,) = queue.timers()
    assert (row["destination"], row["object"]) == (name.encode(), f"{name}/0 {clock}".encode())
    assert (row["kind"], row["clock"], row["timers"]) == ("retention", "wall", 1)
    queue.close()

    (quiet,) = BROKER.sources([{"servers": kafka.address, "groups": [name], "records": False}])
    quiet.poll()
    (row,) = quiet.timers()
    assert (row["due_wall_ns"], row["consequence"]) == (None, "when is not known: the setting has records: false")
    quiet.close()


def delete_before(kafka: Kafka, topic: str, offset: int) -> None:
    from confluent_kafka import TopicPartition

    (deleted,) = kafka.admin.delete_records([TopicPartition(topic, 0, offset)]).values()
    deleted.result(20)


def test_records_that_were_deleted_before_they_were_read_are_counted(
    kafka: Kafka, opened: Callable[..., Queue]
) -> None:
    create(kafka, "trimmed")
    produce(kafka, "trimmed", 53)
    delete_before(kafka, "trimmed", 7)  # before the agent began
    commit(kafka, "stands", "trimmed", 3)
    commit(kafka, "reads", "trimmed", 53)
    queue = opened("stands,reads")

    def removed() -> dict[bytes, int]:
        rows = poll(queue)
        return dict(zip(rows["consumer_group"].tolist(), rows["removed"].tolist(), strict=True))

    assert removed() == {b"stands": 0, b"reads": 0}
    delete_before(kafka, "trimmed", 20)
    assert removed() == {b"stands": 13, b"reads": 0}
    delete_before(kafka, "trimmed", 53)
    assert removed() == removed() == {b"stands": 46, b"reads": 0}
    produce(kafka, "trimmed", 11)
    commit(kafka, "stands", "trimmed", 64)  # as with a reset to the latest
    assert removed() == {b"stands": 46, b"reads": 0}
    delete_before(kafka, "trimmed", 60)
    assert removed() == {b"stands": 46, b"reads": 7}
    commit(kafka, "reads", "trimmed", 64)
    delete_before(kafka, "trimmed", 64)
    produce(kafka, "trimmed", 2)
    assert removed() == {b"stands": 46, b"reads": 7}


def test_the_age_of_a_record_that_may_not_be_read_has_a_lower_bound(kafka: Kafka) -> None:
    create(kafka, "secret")
    produce(kafka, "secret", 5)
    commit(kafka, "unread", "secret", 1)
    create(kafka, "squashed", cleanup_policy="compact")  # what is there may be of any time
    produce(kafka, "squashed", 5)
    commit(kafka, "unread", "squashed", 1)
    began = boot_ns()
    (queue,) = BROKER.sources([{"servers": kafka.address, "groups": ["unread"], "records": False}])
    poll(queue)
    asked = boot_ns()
    time.sleep(1.2)
    row, squashed = poll(queue)
    assert isnan(row["lag_s"]) and (row["t_ns"] - asked) / 1e9 <= row["oldest_undelivered_s"] + 0.1
    assert 1.2 <= row["oldest_undelivered_s"] <= (row["t_ns"] - began) / 1e9
    assert row["inexact_reason"] == f"age: {row['oldest_undelivered_s']:.1f} s or more".encode()
    assert isnan(squashed["oldest_undelivered_s"]) and squashed["inexact_reason"].endswith(b"age: not read")
    produce(kafka, "secret", 3)
    poll(queue)
    commit(kafka, "unread", "secret", 6)  # of our time
    row, _ = poll(queue)
    assert row["lag_basis"] == TABLE.code("lag_basis", "history") and row["inexact_reason"] == b""
    queue.close()


def test_a_poll_reads_a_bounded_number_of_bytes(kafka: Kafka) -> None:
    """Each partition's first record is large; all of them are read by and by."""
    from confluent_kafka import Producer

    size = 500_000
    create(kafka, "heavy", 23)
    producer = Producer({"bootstrap.servers": kafka.address})
    for partition in range(23):
        producer.produce("heavy", bytes(size), partition=partition)
    assert producer.flush(20) == 0
    reader = RecordReader({"bootstrap.servers": kafka.address})
    left = {("heavy", partition): 0 for partition in range(23)}
    polls = []
    while left:
        found = reader.read(left, 20.0)
        polls.append(len(found))
        left = {key: at for key, at in left.items() if key not in found}
    fit = -(-MOST_BYTES // size)
    assert all(n == fit for n in polls[:-1]) and polls[-1] <= fit


def test_a_record_from_the_future_has_no_age(kafka: Kafka, opened: Callable[..., Queue]) -> None:
    from confluent_kafka import Producer

    create(kafka, "future")
    producer = Producer({"bootstrap.servers": kafka.address})
    producer.produce("future", b"x", partition=0, timestamp=time.time_ns() // 1_000_000 + 1_800_000)
    assert producer.flush(20) == 0
    commit(kafka, "future", "future", 0)
    row = one(opened("future"))
    assert row["lag_messages"] == 1
    assert isnan(row["lag_s"])
    assert row["inexact_reason"].endswith(b" s ahead")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_consumers(
    request: pytest.FixtureRequest,
    kafka: Kafka,
    opened: Callable[..., Queue],
    consume: Callable[..., Any],
    protocol: str,
) -> None:
    if protocol == "consumer" and OLDER in request.node.name:
        pytest.skip("Kafka has this protocol (KIP-848) as a preview only before 4.0")
    topic, group = f"jobs-{protocol}", f"workers-{protocol}"
    create(kafka, topic, 2)
    produce(kafka, topic, 17, 0)
    queue = opened(group)
    (row,) = until_rows(queue, lambda rows: rows["group_state"].tolist() == [b"dead"])
    assert (row["reason"].partition(b":")[0], row["status"]) == (b"no such consumer group", b"unknown")
    first = consume(topic, group, protocol)
    rows = until_rows(queue, lambda rows: len(rows) == 2 and (rows["lag_messages"] == 0).all())
    assert set(rows["group_state"]) == {b"stable"}
    assert rows["consumers"].tolist() == [1, 1]
    assert set(rows["holder"]) == {f"{group}-consumer@127.0.0.1".encode()}
    before = rows["rebalances"].max()

    second = consume(topic, group, protocol)  # it takes one of the partitions
    rows = until_rows(queue, lambda rows: (rows["consumers"] == 2).all() and set(rows["group_state"]) == {b"stable"})
    rows = until_rows(queue, lambda rows: (rows["rebalances"] > before).all())
    before = rows["rebalances"].max()

    from confluent_kafka.admin import NewPartitions

    kafka.admin.create_partitions([NewPartitions(topic, 3)])[topic].result(20)
    # It is empty, and nothing was committed.
    rows = until_rows(
        queue, lambda rows: rows["partition"].tolist() == [b"0", b"1", b"2"] and not rows["lag_messages"][2]
    )
    produce(kafka, topic, 5, 2)
    rows = until_rows(queue, lambda rows: (rows["lag_messages"] == 0).all() and len(rows) == 3)

    for process in (first, second):
        process.send_signal(signal.SIGSTOP)
    produce(kafka, topic, 23, 2)
    rows = until_rows(queue, lambda rows: rows["lag_messages"].max() == 23)
    assert rows["lag_messages"].tolist() == [0, 0, 23]
    for process in (first, second):
        process.kill()
    rows = until_rows(queue, lambda rows: set(rows["group_state"]) == {b"empty"})
    assert set(rows["consumers"]) == {0}
    # In partition 1 nothing was ever committed, and it is no longer assigned.
    assert dict(zip(rows["partition"], rows["lag_messages"], strict=True)) == {b"0": 0, b"2": 23}
    assert (rows["rebalances"] > before).all()


def test_who_keeps_up_who_falls_behind_and_who_reads_nothing(
    kafka: Kafka, opened: Callable[..., Queue], consume: Callable[..., Any]
) -> None:
    for topic in ("busy", "idle"):
        create(kafka, topic)
        produce(kafka, topic, 7)
    kafka.commit("pace-idle", "idle", {0: 7})  # its producer sends nothing more
    gone = consume("busy", "pace-gone")
    consume("busy", "pace-fast")
    consume("busy", "pace-slow", "classic", 0.1)
    queue = opened("pace-*")
    until_rows(queue, lambda rows: rows["lag_messages"].tolist() == [0] * 4)
    gone.kill()

    def judged(rows: np.ndarray) -> bool:
        produce(kafka, "busy", 53)
        expected = {b"pace-gone": b"stopped", b"pace-idle": b"ok", b"pace-fast": b"ok", b"pace-slow": b"lagging"}
        return dict(zip(rows["consumer_group"], rows["status"], strict=True)) == expected

    rows = until_rows(queue, judged, each_s=0.5)
    (stopped,) = rows[rows["consumer_group"] == b"pace-gone"]
    assert b"no consumer" in stopped["reason"]
    (idle,) = rows[rows["consumer_group"] == b"pace-idle"]
    assert (idle["lag_messages"], idle["in_per_s"], idle["out_per_s"]) == (0, 0, 0)


def test_what_no_consumer_will_get_is_reported(kafka: Kafka, opened: Callable[..., Queue]) -> None:
    from confluent_kafka import Producer, TopicPartition

    admin = kafka.admin
    create(kafka, "kept")
    produce(kafka, "kept", 53)
    commit(kafka, "late", "kept", 3)
    (deleted,) = admin.delete_records([TopicPartition("kept", 0, 20)]).values()
    deleted.result(20)
    row = one(opened("late"))
    assert (row["lag_messages"], row["exact"]) == (33, 0)
    assert row["inexact_reason"] == b"17 records were deleted before they were read"
    (deleted,) = admin.delete_records([TopicPartition("kept", 0, 53)]).values()
    deleted.result(20)
    queue = opened("late")
    for _ in range(2):  # also after it has seen that no record is there
        (row,) = until_rows(queue, lambda rows: rows["lag_messages"].tolist() == [0])
        assert row["inexact_reason"] == b"50 records were deleted before they were read"

    create(kafka, "states", cleanup_policy="compact")
    produce(kafka, "states", 29)
    commit(kafka, "compacted", "states", 5)
    row = one(opened("compacted"))
    assert (row["lag_messages"], row["exact"]) == (24, 0)
    assert b"compacted" in row["inexact_reason"]

    commit(kafka, "ahead", "kept", 60)
    row = one(opened("ahead"))
    assert row["lag_messages"] == -(2**63)
    assert b"beyond the end" in row["inexact_reason"]

    create(kafka, "paid")
    producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": "t"})
    producer.init_transactions(20)
    producer.begin_transaction()
    for _ in range(7):
        producer.produce("paid", b"x", partition=0)
    producer.flush(20)
    commit(kafka, "payers", "paid", 0)
    queue = opened("payers")
    row = one(queue)
    assert (row["lag_messages"], row["exact"]) == (7, 0)
    assert row["inexact_reason"].startswith(b"upper bound: 7 in open transactions")
    producer.commit_transaction(20)
    (row,) = until_rows(queue, lambda rows: rows["lag_messages"].tolist() == [8])  # a marker follows the records
    assert (row["exact"], row["inexact_reason"]) == (0, b"upper bound: counts markers of transactions")
    for offset in (7, 8):  # no record follows, but a marker: librdkafka's consumers commit the first, Java's the second
        commit(kafka, "payers", "paid", offset)
        (row,) = until_rows(queue, lambda rows: rows["lag_messages"].tolist() == [0])
        assert row["exact"] == 1


def test_a_group_that_waits_at_an_open_transaction_is_not_only_stalled(
    kafka: Kafka, opened: Callable[..., Queue], consume: Callable[..., Any]
) -> None:
    """librdkafka's consumers read committed records only, if they are not told otherwise."""
    from confluent_kafka import Producer

    create(kafka, "held")
    consume("held", "waits")
    queue = opened("waits")
    for _ in range(5):  # so that its commit interval is known
        produce(kafka, "held", 7)
        until_rows(queue, lambda rows: rows["lag_messages"].tolist() == [0])
    producer = Producer(
        {"bootstrap.servers": kafka.address, "transactional.id": "open", "transaction.timeout.ms": 900_000}
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce("held", b"x", partition=0)
    producer.flush(20)
    produce(kafka, "held", 11)
    (row,) = until_rows(queue, lambda rows: rows["status"].tolist() == [b"stalled"], each_s=0.5)
    assert b"12 undelivered" in row["reason"]
    assert b" undelivered; open transaction at offset 35: read_committed waits" in row["reason"]
    producer.commit_transaction(20)
    (row,) = until_rows(queue, lambda rows: rows["lag_messages"].tolist() == [0])
    assert row["status"] == b"ok"


def test_a_share_group_has_no_lag_and_is_not_listed(
    request: pytest.FixtureRequest, kafka: Kafka, opened: Callable[..., Queue]
) -> None:
    if OLDER in request.node.name:
        pytest.skip("Kafka has share groups since 4.2")
    confluent_kafka = pytest.importorskip("confluent_kafka", "2.15")
    create(kafka, "shared")
    sharer = confluent_kafka.ShareConsumer({"bootstrap.servers": kafka.address, "group.id": "sharers"})
    sharer.subscribe(["shared"])
    until(lambda: len(sharer.poll(1)), turn=lambda: produce(kafka, "shared", 3))  # it begins with new records
    row = one(opened("sharers"))
    assert (row["consumer_group"], row["status"], row["lag_messages"]) == (b"sharers", b"unknown", -(2**63))
    assert row["reason"].startswith(b"no such consumer group") and row["reason"].endswith(
        b"share groups are not watched"
    )
    assert one(opened("sharer*"))["consumer_group"] == b""
    sharer.close()


def test_topics_and_groups_that_are_gone_are_a_state_of_their_own(kafka: Kafka, opened: Callable[..., Queue]) -> None:
    admin = kafka.admin
    create(kafka, "brief")
    produce(kafka, "brief", 3)
    commit(kafka, "readers", "brief", 1)
    queue = opened("readers")
    assert one(queue)["lag_messages"] == 2
    admin.delete_topics(["brief"])["brief"].result(20)
    (row,) = until_rows(queue, lambda rows: rows["status"].tolist() == [b"gone"])
    assert (row["destination"], row["partition"], row["consumer_group"]) == (b"brief", b"0", b"readers")
    assert (row["reason"].split(b";")[0], row["lag_messages"]) == (b"the topic was deleted", -(2**63))
    create(kafka, "brief")
    while one(queue)["lag_messages"] != 0:  # the broker may still be removing the old topic's offsets
        commit(kafka, "readers", "brief", 0)
    produce(kafka, "brief", 5)
    assert one(queue)["lag_messages"] == 5
    admin.delete_consumer_groups(["readers"])["readers"].result(20)
    (row,) = until_rows(queue, lambda rows: rows["status"].tolist() == [b"gone"])
    assert (row["destination"], row["reason"].split(b";")[0]) == (b"brief", b"the group was deleted")
    commit(kafka, "readers", "brief", 2)
    (row,) = until_rows(queue, lambda rows: rows["status"].tolist() == [b"ok"])
    assert row["lag_messages"] == 3


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_group_that_is_set_back_is_rewound_also_where_its_lag_is_a_bound(
    kafka: Kafka, opened: Callable[..., Queue], policy: str
) -> None:
    create(kafka, f"again-{policy}", cleanup_policy=policy)
    produce(kafka, f"again-{policy}", 53)
    commit(kafka, f"again-{policy}", f"again-{policy}", 47)
    queue = opened(f"again-{policy}")
    assert [one(queue)["status"] for _ in range(3)] == [b"ok"] * 3
    commit(kafka, f"again-{policy}", f"again-{policy}", 10)
    (row,) = until_rows(queue, lambda rows: rows["status"].tolist() == [b"rewound"])
    assert row["lag_messages"] == 43
    assert row["reason"].startswith(b"went back by 37 messages")


def test_what_is_kept_depends_on_the_producers_clock(kafka: Kafka, opened: Callable[..., Queue]) -> None:
    """It is an hour behind, and so are the timestamps of its records: they are deleted an hour sooner."""
    from confluent_kafka import Producer

    create(kafka, "kept-behind", retention_ms="7200000")
    commit(kafka, "kept-behind", "kept-behind", 0)
    queue = opened("kept-behind")
    poll(queue)
    producer = Producer({"bootstrap.servers": kafka.address})
    producer.produce("kept-behind", b"x", partition=0, timestamp=time.time_ns() // 1_000_000 - 3_600_000)
    assert producer.flush(20) == 0
    (row,) = until_rows(queue, lambda rows: rows["retention_left_s"][0] < 3601)
    assert row["lag_basis"] == TABLE.code("lag_basis", "history")
    assert row["lag_s"] < 600 * PATIENCE
    assert row["retention_left_s"] > 3000 - 600 * PATIENCE


def test_more_partitions_than_are_watched_are_reported(
    kafka: Kafka, opened: Callable[..., Queue], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_broker, "MAX_ROWS", 2)
    monkeypatch.setattr(kafka_broker, "MAX_GROUPS", 2)
    create(kafka, "many", 3)
    for group in "abc":
        commit(kafka, f"many-{group}", "many", 0, 1)
    commit(kafka, "many-a", "many", 0, 0)
    rows = poll(opened("many-*"))
    known = [(row["consumer_group"], row["partition"]) for row in rows[:2]]
    assert known == [(b"many-a", b"0"), (b"many-a", b"1")]
    assert [row["reason"][:18] for row in rows[2:]] == [b"more than 2 groups", b"more than 2 partit"]


def test_the_brokers_process_polls_it_and_its_log_stays_quiet(
    kafka: Kafka, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    create(kafka, "polled", 5)
    for partition in range(5):
        produce(kafka, "polled", 13, partition)
        commit(kafka, "pollers", "polled", 2, partition)
    monkeypatch.setenv("TICKSCOPE_KAFKA_PASSWORD", USERS["other"])
    login = {"user": "other", "mechanism": "PLAIN", "password_variable": "TICKSCOPE_KAFKA_PASSWORD"}
    other = {"servers": f"127.0.0.1:{kafka.sasl}", "groups": ["pollers"], **login}
    brokers = BrokerPoller("kafka", (f"{kafka.address}?groups=pollers", "127.0.0.1:1", other), 0.2)
    rows = until_drained(brokers, lambda rows: len(rows) >= 40)
    failures = brokers.failures()
    brokers.close()
    assert failures == {}
    known = {(r["partition"], r["lag_messages"]) for r in rows if r["status"] == b"ok"}
    assert known == {(str(n).encode(), 11) for n in range(5)}
    assert any(b"needs the right Describe on the group" in row["reason"] for row in rows)  # logged in, without rights
    (down,) = {(r["reason"], r["failure"]) for r in rows if r["status"] == b"down"}
    assert down[1] == TABLE.code("failure", "refused")
    assert b"Connection refused" in down[0]
    assert capfd.readouterr().err == ""


def login(kafka: Kafka, **keys: object) -> Any:
    port = kafka.tls if keys.get("tls") else kafka.sasl
    return BROKER.sources([{"servers": f"127.0.0.1:{port}", **keys}])[0]


def test_a_login_with_the_least_rights(kafka: Kafka, tmp_path: Path) -> None:
    from confluent_kafka.admin import (
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    create(kafka, "private")
    produce(kafka, "private", 19)
    commit(kafka, "insiders", "private", 2)
    commit(kafka, "strangers", "private", 2)
    password = tmp_path / "password"
    password.write_text(f"{USERS['tickscope']}\n")
    queue = login(kafka, user="tickscope", mechanism="PLAIN", password_file=str(password), groups=["insiders"])
    assert b"needs the right Describe on the group" in one(queue)["reason"]

    def allow(kind: Any, name: str, operation: Any) -> None:
        user, allowed = "User:tickscope", AclPermissionType.ALLOW
        acl = AclBinding(kind, name, ResourcePatternType.LITERAL, user, "*", operation, allowed)
        kafka.admin.create_acls([acl])[acl].result(20)

    allow(ResourceType.GROUP, "insiders", AclOperation.DESCRIBE)
    rows = until_rows(queue, lambda rows: b"on the group" not in rows["reason"][0])
    assert (rows["destination"].tolist(), rows["status"].tolist()) != ([b"private"], [b"down"])
    allow(ResourceType.TOPIC, "private", AclOperation.DESCRIBE)
    (row,) = until_rows(queue, lambda rows: rows["lag_messages"].tolist() == [17])
    assert row["inexact_reason"].startswith(b"upper bound: may be compacted (no DescribeConfigs right)")
    about = ResourceType.TOPIC, "private", ResourcePatternType.LITERAL, "User:tickscope", "*", AclOperation.DESCRIBE
    for done in kafka.admin.delete_acls([AclBindingFilter(*about, AclPermissionType.ALLOW)]).values():
        done.result(20)
    (row,) = until_rows(queue, lambda rows: b"right Describe on the topic" in rows["reason"][0])
    assert (row["destination"], row["partition"], row["status"]) == (b"private", b"0", b"unknown")
    allow(ResourceType.TOPIC, "private", AclOperation.DESCRIBE)
    allow(ResourceType.TOPIC, "private", AclOperation.DESCRIBE_CONFIGS)
    allow(ResourceType.TOPIC, "__transaction_state", AclOperation.DESCRIBE)
    queue.close()
    queue = login(kafka, user="tickscope", mechanism="PLAIN", password_file=str(password))
    (row,) = until_rows(queue, lambda rows: rows["lag_messages"].tolist() == [17])  # and no other group
    assert b"may be compacted" not in row["inexact_reason"]
    queue.close()


@pytest.mark.parametrize("wrong", ["password", "file", "certificate", "plain"])
def test_a_refused_login_is_reported(kafka: Kafka, tmp_path: Path, wrong: str) -> None:
    password = tmp_path / "password"
    password.write_text("wrong\n")
    sasl = {"user": "tickscope", "mechanism": "PLAIN", "password_file": str(password)}
    keys, failures, words = {
        "password": (sasl, ("login",), b"Authentication failed"),
        "file": ({**sasl, "password_file": "/nonexistent"}, ("login",), b"No such file"),
        "certificate": (
            {"tls": True, "ca_file": str(kafka.other_ca)},
            ("login", "other"),
            b"certificate verify failed",
        ),
        "plain": ({}, ("closed", "no_answer", "other"), b""),
    }[wrong]
    queue = login(kafka, **keys)
    for _ in range(3):
        row = one(queue)
        assert (row["status"], row["destination"]) == (b"down", b"")
        assert row["failure"] in [TABLE.code("failure", name) for name in failures], row["reason"]
        assert words in row["reason"]
    queue.close()


def test_tls_with_the_right_certificate(kafka: Kafka) -> None:
    queue = login(kafka, tls=True, ca_file=str(kafka.ca), groups=["nobody"])
    until_rows(queue, lambda rows: rows["reason"][0].startswith(b"no such consumer group"))
    queue.close()


def test_a_stopped_a_dead_and_a_returned_broker(kafka: Kafka, opened: Callable[..., Queue]) -> None:
    create(kafka, "durable")
    produce(kafka, "durable", 31)
    commit(kafka, "patient", "durable", 2)
    queue = opened("patient")
    assert one(queue)["lag_messages"] == 29
    kafka.process.send_signal(signal.SIGSTOP)
    try:
        until_rows(queue, lambda rows: rows["status"].tolist() == [b"down"], each_s=0)  # it takes a moment to stop
        for _ in range(3):
            row = one(queue)
            assert (row["status"], row["destination"], row["consumer_group"]) == (b"down", b"durable", b"patient")
            assert row["failure"] == TABLE.code("failure", "no_answer"), row["reason"]
            assert row["cluster"] == b"3Db5QLSqSZieL3rJBUUegA"
            assert row["peer"].any()
    finally:
        kafka.process.send_signal(signal.SIGCONT)
    until_rows(queue, lambda rows: rows["status"].tolist() == [b"ok"])
    kafka.end()
    try:
        (row,) = until_rows(queue, lambda rows: b"refused" in rows["reason"][0])
        assert (row["status"], row["failure"]) == (b"down", TABLE.code("failure", "refused"))
    finally:
        kafka.start()
    (row,) = until_rows(queue, lambda rows: rows["status"].tolist() == [b"ok"])
    assert (row["lag_messages"], row["exact"]) == (29, row["exact"])


def slowly(connection: Any) -> None:
    """A frame of 1,000 bytes, one a second."""
    for letter in (1000).to_bytes(4, "big") + bytes(1000):
        connection.sendall(bytes([letter]))
        time.sleep(1)


#: An answer to the first question, of 4 bytes: its number.
FRAME = (4).to_bytes(4, "big") + (1).to_bytes(4, "big")


@pytest.mark.parametrize(
    "say",
    [
        _once(b"HTTP/1.1 400 Bad Request\r\n\r\n"),  # its first 4 bytes are a length of 1.2 GB
        _once(FRAME[:-4] + bytes(range(4))),
        _once(FRAME),
        _once(b""),
        _endless(b"", bytes(65536)),
        _endless(b"", FRAME * 8192),
        _endless((2**31 - 1).to_bytes(4, "big"), b"x" * 65536),
        slowly,
        lambda _: time.sleep(60),
    ],
    ids=["http", "number", "short", "closes", "zeros", "frames", "endless", "slowly", "silent"],
)
def test_a_server_that_is_no_kafka_is_down_in_time_and_delays_no_other_one(
    kafka: Kafka, say: Callable[[Any], None]
) -> None:
    """In one process with a real Kafka, which lives on and does not grow."""
    if "beside" not in kafka.admin.list_topics(timeout=20).topics:
        create(kafka, "beside")
        produce(kafka, "beside", 7)
        commit(kafka, "neighbours", "beside", 2)
    odd = Odd(say)
    brokers = BrokerPoller("kafka", (f"127.0.0.1:{odd.port}", f"{kafka.address}?groups=neighbours"), 0.2)
    (process,) = brokers.processes()
    beside = lambda rows: [row for row in rows if row["destination"] == b"beside"]  # noqa: E731
    rows = until_drained(brokers, lambda rows: 5 <= len(beside(rows)) <= len(rows) - 5)
    down, well = [row for row in rows if row["destination"] != b"beside"], beside(rows)
    (after,), failures = brokers.processes(), brokers.failures()
    status = Path(f"/proc/{process['pid']}/status").read_text()
    brokers.close()
    odd.close()
    assert failures == {} and after["pid"] == process["pid"]
    assert len(down) >= 5 and {row["lag_messages"] for row in well if row["status"] == b"ok"} == {5}
    for row in down:
        assert (row["status"], row["destination"]) == (b"down", b"")
        assert row["failure"] in [TABLE.code("failure", name) for name in ("no_answer", "closed", "other")]
        assert len(row["reason"]) > len(f"kafka 127.0.0.1:{odd.port}: ")
        assert row["poll_ns"] < 2.5e9 * PATIENCE
    assert int(status.partition("VmHWM:")[2].split()[0]) < 150_000  # KiB
