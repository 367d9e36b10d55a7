"""Duplicates and order of the records of a real Kafka, by a producer that knows its own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.queues import kafka_tail
from agent.queues.brokers.kafka import BROKER
from agent.queues.kafka_tail import FIRST
from agent.queues.packing import pack
from agent.tables import TABLES
from tests.patience import PATIENCE, until
from tests.servers.kafka_server import USERS, Kafka, fetched
from tests.servers.test_redis_order import uuid7
from tests.unit.test_message_order import shuffled

TABLE = TABLES["message_order"]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    server = Kafka(fetched(tmp_path_factory.mktemp("kafka-libraries")), tmp_path_factory.mktemp("kafka"))
    yield server
    server.end()


def create(kafka: Kafka, topic: str, partitions: int = 1) -> None:
    """With a group that has committed an offset in each partition."""
    from confluent_kafka.admin import NewTopic

    kafka.admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(20 * PATIENCE)
    kafka.commit(f"group-{topic}", topic, dict.fromkeys(range(partitions), 0))


def as_json(n: int) -> dict[str, Any]:
    return {"value": json.dumps({"order": [{"id": f"o{n}"}], "n": n, "payload": "x" * 50})}


def as_headers(n: int) -> dict[str, Any]:
    return {"value": b"\xff", "headers": [("message-id", b"old"), ("message-id", f"o{n}".encode()), ("n", str(n))]}


def produce(
    kafka: Kafka,
    topic: str,
    numbers: Sequence[int],
    partition: int = 0,
    form: Callable[..., Any] = as_json,
    **more: Any,
) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.address, "linger.ms": 5, **more})
    if more:
        producer.init_transactions(20 * PATIENCE)
        producer.begin_transaction()
    for n in numbers:
        producer.produce(topic, partition=partition, **form(n))
    assert producer.flush(20 * PATIENCE) == 0
    if more:
        producer.abort_transaction(20 * PATIENCE)


class Polled:
    """The cluster's queues, polled once at the start."""

    def __init__(self, given: Any) -> None:
        (self.queue,) = BROKER.sources([given])
        self.lag: list[Any] = []
        self.rows = TABLE.empty(0)
        self.poll()

    def poll(self) -> None:
        self.lag = self.queue.poll()
        self.rows = np.concatenate([self.rows, np.frombuffer(pack(self.queue.order(), TABLE.name), TABLE.dtype)])

    def until(self, fits: Callable[[], Any]) -> None:
        until(fits, 40, 0.1, why=lambda: (self.rows, self.lag), turn=self.poll)

    def sums(self, *names: str) -> list[int]:
        return [
            int(np.maximum(self.rows[name], 0).sum()) for name in names or ("messages", "duplicates", "out_of_order")
        ]


@pytest.mark.parametrize(
    ("form", "options"), [(as_json, "id=order/0/id&seq=n"), (as_headers, "id=header:message-id&seq=header:n")]
)
def test_23_duplicates_and_7_swaps_among_10_007_records(kafka: Kafka, form: Any, options: str) -> None:
    """In partition 1, while partition 0 has other records. The broker restarts in between."""
    topic = form.__name__
    create(kafka, topic, 2)
    polled = Polled(f"{kafka.address}?groups=group-{topic}&{options}")
    order = shuffled(10_007 - 23, 23, 7, 11)
    for at in range(0, len(order), 900):
        produce(kafka, topic, order[at : at + 900], 1, form)
        produce(kafka, topic, range(10**6 + at, 10**6 + at + 100), 0, form)
        polled.poll()
        if at == 4500 and form is as_json:
            kafka.end()
            polled.poll()
            assert polled.lag[0]["status"] == "down"
            kafka.start()
    polled.until(lambda: polled.sums("messages") >= [10_007 + 1200])
    polled.poll()
    assert polled.sums() == [10_007 + 1200, 23, 7]
    assert polled.sums("unread") == [0]
    twice = polled.rows[(polled.rows["duplicates"] > 0) | (polled.rows["out_of_order"] > 0)]
    assert set(twice["partition"].tolist()) == {b"1"}
    assert set(polled.rows["cluster"].tolist()) == {polled.lag[0]["cluster"].encode()}
    assert set(polled.rows["source"].tolist()) == {TABLE.code("source", "sample")}
    assert all(name.startswith(b"o") for name in twice["duplicate_id"].tolist() if name)
    assert {row["lag_messages"] for row in polled.lag if "lag_messages" in row} == {
        10_007,
        1200,
    }  # nothing is committed
    polled.queue.close()


def test_a_partition_that_is_far_behind_is_skipped_and_counted(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of an aborted transaction are none. Those that were there before are checked, too."""
    monkeypatch.setattr(kafka_tail, "_SKIP", FIRST)
    create(kafka, "flood")
    produce(kafka, "flood", [*range(FIRST), 5, 6])
    polled = Polled(f"{kafka.address}?groups=group-flood&id=order/0/id&seq=n")
    polled.until(lambda: polled.sums("messages") >= [FIRST])
    assert polled.sums() == [FIRST, 2, 0]
    produce(kafka, "flood", range(2000, 2000 + FIRST + 13))
    polled.poll()
    assert polled.sums("messages", "unread") == [FIRST, FIRST + 13]
    produce(kafka, "flood", [9, 9], **{"transactional.id": "t"})
    produce(kafka, "flood", [9, 9999])
    polled.until(lambda: polled.sums("messages") >= [FIRST + 2])
    assert polled.sums() == [FIRST + 2, 3, 0]
    polled.queue.close()


def test_what_cannot_be_read_is_a_reason(kafka: Kafka, tmp_path: Path) -> None:
    """Records without an id, and a topic without the right Read; with it, nothing else is needed."""
    from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

    create(kafka, "bare")
    password = tmp_path / "password"
    password.write_text(USERS["tickscope"])
    login = {"user": "tickscope", "mechanism": "PLAIN", "password_file": str(password)}
    given = {"servers": f"127.0.0.1:{kafka.sasl}", "groups": ["group-bare"], "id": "order/1/id", **login}

    def allow(kind: Any, name: str, *operations: Any) -> None:
        for operation in operations:
            user, allowed = "User:tickscope", AclPermissionType.ALLOW
            acl = AclBinding(kind, name, ResourcePatternType.LITERAL, user, "*", operation, allowed)
            kafka.admin.create_acls([acl])[acl].result(20 * PATIENCE)

    allow(ResourceType.GROUP, "group-bare", AclOperation.DESCRIBE)
    allow(ResourceType.TOPIC, "bare", AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    produce(kafka, "bare", range(3))
    polled = Polled(given)
    polled.until(lambda: any("the right Read on the topic" in str(row.get("reason")) for row in polled.lag))
    assert {row["lag_messages"] for row in polled.lag if "lag_messages" in row} == {3}
    polled.queue.close()
    allow(ResourceType.TOPIC, "bare", AclOperation.READ)
    polled = Polled(given)
    polled.until(lambda: any("3 new records have no order/1/id" in str(row.get("reason")) for row in polled.lag))
    assert polled.sums() == [0, 0, 0]
    polled.queue.close()


def test_the_highest_id_of_a_topic_is_a_timer(kafka: Kafka) -> None:
    now_ms = time.time_ns() // 10**6
    create(kafka, "uuids", 2)
    produce(kafka, "uuids", range(7), 1, lambda n: {"value": json.dumps({"id": uuid7(now_ms - 1000 * (n % 5))})})
    polled = Polled(f"kafka://{kafka.address}?topics=uuids&id=id&seq=id")
    polled.until(lambda: polled.sums("messages") == [7])
    assert polled.sums("duplicates", "out_of_order") == [0, 5]
    (ids,) = [one for one in polled.queue.timers() if one.get("kind") == "id"]  # type: ignore[attr-defined]
    assert (ids["destination"], ids["object"], ids["clock"]) == (b"uuids", b"UUIDv7", "wall")
    assert ids["due_wall_ns"] == now_ms * 10**6
    polled.queue.close()
