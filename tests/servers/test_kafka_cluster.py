"""Queues of a real Kafka of three nodes whose leader of a partition is killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.common.clocks import boot_ns
from agent.correlate.correlator import Correlator
from agent.queues.packing import TABLE
from agent.queues.poller_process import BrokerPoller
from tests.patience import PATIENCE, until
from tests.ports import free_ports
from tests.servers.kafka_server import Kafka, fetched
from tests.unit.correlate_scenarios import latest

TOPIC, GROUP, COMMITTED = "orders", "billing", 3
WRITTEN = (101, 67, 41)  # by partition


@pytest.fixture
def nodes(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Kafka]]:
    libraries, controllers = fetched(tmp_path_factory.mktemp("kafka-libraries")), free_ports(3)
    made = []
    for i in (1, 2, 3):
        (tmp_path / str(i)).mkdir()
        replicas = {"offsets.topic.replication.factor": 3, "broker.session.timeout.ms": 3000}
        made.append(Kafka(libraries, tmp_path / str(i), i, controllers, **replicas))
    try:
        for one in made:
            one.launch()
        for one in made:
            one.wait()
        until(lambda: len(made[0].admin.list_topics(timeout=5).brokers) == 3)
        yield made
    finally:
        for one in made:
            if hasattr(one, "process"):
                one.end()


def produce(servers: str, counts: dict[int, int]) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, "acks": "all", "log_level": 0})
    for partition, n in counts.items():
        for i in range(n):
            producer.produce(TOPIC, f"v{i}", "k", partition)
    assert producer.flush(60 * PATIENCE) == 0


def test_a_queue_keeps_its_identity_and_its_lag_when_its_leader_is_killed(nodes: list[Kafka]) -> None:
    from confluent_kafka.admin import NewTopic

    servers = ",".join(node.address for node in nodes)
    admin = nodes[0].admin
    admin.create_topics([NewTopic(TOPIC, len(WRITTEN), 3)])[TOPIC].result(60 * PATIENCE)
    produce(servers, dict(enumerate(WRITTEN)))
    nodes[0].commit(GROUP, TOPIC, dict.fromkeys(range(len(WRITTEN)), COMMITTED))
    truth = {str(i).encode(): n - COMMITTED for i, n in enumerate(WRITTEN)}
    correlator, found, seen = Correlator(), list[Any](), list[Any]()
    url = f"kafka://{servers}?groups={GROUP}&topics={TOPIC}"
    poller = BrokerPoller("kafka", (url,), 0.2)  # a process of its own: librdkafka may crash meanwhile
    last = TABLE.empty(0)

    def polled() -> Any:
        """The rows of the last poll."""
        nonlocal last
        for batch in poller.drain(boot_ns()):
            correlator.feed(batch)
            if batch.table == "queue_lag":
                its = batch.rows[batch.rows["partition"] != b""]
                seen.extend(its)
                last = its[its["t_ns"] == its["t_ns"].max()] if len(its) else last
        found.extend(correlator.advance(boot_ns()))
        return last

    def lags(rows: Any) -> dict[bytes, int]:
        return {row["partition"]: int(row["lag_messages"]) for row in rows}

    def leader(rows: Any, partition: bytes) -> int:
        (row,) = (row for row in rows if row["partition"] == partition)
        return int.from_bytes(row["peer"].tobytes()[16:], "little")

    with closing(poller):
        until(lambda: lags(polled()) == truth)
        before = polled()
        stopped = next(node for node in nodes if node.plain == leader(before, b"1"))

        def long_polls() -> list[Any]:
            """Of that broker, which is stopped for half a second once more."""
            stopped.process.send_signal(signal.SIGSTOP)
            time.sleep(0.5)
            stopped.process.send_signal(signal.SIGCONT)
            polled()
            return [row for row in seen if row["partition"] == b"1" and row["poll_ns"] > 250_000_000]

        for long in until(long_polls):
            others = [row["poll_ns"] for row in seen if row["t_ns"] == long["t_ns"] and row["partition"] != b"1"]
            assert all(ns < long["poll_ns"] // 2 for ns in others), (long, others)
        until(lambda: lags(polled()) == truth)
        before = polled()
        its = leader(before, b"0")
        killed = next(node for node in nodes if node.plain == its)
        killed.end()
        after = until(lambda: [*rows] if lags(rows := polled()) == truth and leader(rows, b"0") != its else [])
        assert leader(after, b"0") in {node.plain for node in nodes} - {its}
        produce(servers, {0: 7})
        truth[b"0"] += 7
        until(lambda: lags(polled()) == truth)
    # One queue for each partition all the time. What was not known had no lag, and none was wrong.
    names = {(row["cluster"], row["destination"], row["partition"], row["consumer_group"]) for row in seen}
    assert len(names) == len(WRITTEN)
    unknown = np.iinfo(np.int64).min
    for row in seen:
        right = (truth[row["partition"]], truth[row["partition"]] - 7 * (row["partition"] == b"0"), unknown)
        assert row["lag_messages"] in right, row
        assert row["lag_messages"] != unknown or row["status"] in (b"down", b"unknown"), (row["reason"], row)
        assert row["status"] not in (b"rewound", b"gone", b"stopped", b"stalled"), row
        assert not row["removed"] > 0, row
        assert b"beyond the end" not in row["reason"], row
    symptoms = {one["symptom"] for one in latest(found)}
    assert not symptoms & {"entries_lost", "queue_lag"}, latest(found)
