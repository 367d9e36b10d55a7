"""Kafka from the client library to the finding: a consumer is stopped while records arrive."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.ports import free_ports
from tests.servers.kafka_server import Kafka, fetched
from tests.system.agent import Agent

CONSUMER = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "billing", "auto.offset.reset": "earliest",
    "auto.commit.interval.ms": 500, "client.id": "biller", "session.timeout.ms": 45000})
consumer.subscribe(["orders"])
while True:
    consumer.poll(1)
"""
PRODUCER = """
import sys
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": sys.argv[1], "linger.ms": 5})
while True:
    producer.produce("orders", b"x")
    producer.poll(0.05)
"""


@pytest.fixture
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    server = Kafka(fetched(tmp_path_factory.mktemp("kafka-libraries")), tmp_path_factory.mktemp("kafka"))
    yield server
    server.end()


def test_a_stopped_consumer_is_a_finding(kafka: Kafka, start: Callable[..., Agent]) -> None:
    from confluent_kafka.admin import NewTopic

    kafka.admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(20)
    (page,) = free_ports(1)
    url = f"kafka://{kafka.address}?groups=billing"
    agent = start("--kafka", url, config=f"prometheus: 127.0.0.1:{page}\n").ready()
    programs = [subprocess.Popen([sys.executable, "-c", code, kafka.address]) for code in (CONSUMER, PRODUCER)]
    consumer = programs[0]
    try:
        agent.rows("queue_lag", "consumer_group = 'billing' AND lag_messages IS NOT NULL", 25, limit_s=60)
        consumer.send_signal(signal.SIGSTOP)

        def found() -> list[dict[str, Any]]:
            return [
                one
                for one in agent.json("findings", "--since", "2m")["rows"]
                if one["symptom"] == "queue_lag" and "orders" in one["subject"]
            ]

        agent.until(found)
        (row,) = [q for q in agent.json("queues")["rows"] if q["queue"] == "orders"]
        assert (row["system"], row["partition"], row["consumer_group"]) == ("kafka", "0", "billing")
        assert row["length"] > 20
        assert row["oldest_s"] > 1
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/metrics", timeout=20) as answer:
            metrics = answer.read().decode().splitlines()
        assert [
            line
            for line in metrics
            if line.startswith("tickscope_queue_lag{") and 'system="kafka"' in line and float(line.split()[-1]) > 20
        ], metrics
        (finding,) = agent.until(lambda: [one for one in found() if one["culprit_pid"] == consumer.pid])
        assert finding["cause"] == "process_stopped"
        others = {cause["cause"]: cause["words"] for cause in finding["causes"]}
        assert "1 client stopped talking to the server" in others["consumer_stopped"]
    finally:
        for program in programs:
            program.kill()
            program.wait()
