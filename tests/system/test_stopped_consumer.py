"""From each real server to `queues`, a finding and a metric: its consumer stops while messages arrive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.servers import etcd, nats, postgresql, rabbitmq
from tests.servers.celery_pieces import Worker
from tests.servers.kafka_server import Kafka, fetched
from tests.servers.test_redis_streams import Redis
from tests.system.agent import Agent

#: Rows of a healthy queue before its consumer is stopped, one a second.
USUAL = 25
KAFKA_CONSUMER = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "billing", "auto.offset.reset": "earliest",
    "auto.commit.interval.ms": 500, "client.id": "biller", "session.timeout.ms": 45000})
consumer.subscribe(["orders"])
while True:
    consumer.poll(1)
"""
KAFKA_PRODUCER = """
import sys
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": sys.argv[1], "linger.ms": 5})
while True:
    producer.produce("orders", b"x")
    producer.poll(0.05)
"""

CELERY_SENDER = """
import sys, time
from celery import Celery
app = Celery(broker=sys.argv[1])
while True:
    app.send_task("early", (0,))
    time.sleep(0.05)
"""


@dataclass(frozen=True)
class Case:
    """consumer: its process. options, config: of the agent. shown, above: columns of the queue in ``queues``, equal to
    these and greater than these. sent: the signal to the consumer. cause: of the finding.
    """

    consumer: int
    shown: Mapping[str, object]
    options: tuple[str, ...] = ()
    config: str = ""
    above: Mapping[str, float] = field(default_factory=lambda: {"length": 100})
    sent: int = signal.SIGSTOP
    cause: str = "process_stopped"


def running(ends: ExitStack, code: str, server: str) -> subprocess.Popen[bytes]:
    """A program in Python, killed at the end."""
    program = subprocess.Popen([sys.executable, "-c", code, server])
    ends.callback(program.wait)
    ends.callback(program.kill)
    return program


def of_celery(folder: Path, ends: ExitStack) -> Case:
    redis = ends.enter_context(Redis(folder))
    worker = Worker(redis.url, folder)
    ends.callback(worker.end)
    ends.callback(worker.signal, signal.SIGKILL)  # also the process that works for it, if it was killed alone
    running(ends, CELERY_SENDER, redis.url)
    return Case(
        worker.process.pid,
        {"queue": "celery", "exact": True},
        ("--celery", f"{redis.url}?queues=celery"),
        above={"length": 20, "oldest_s": 1},
    )


def of_killed_celery(folder: Path, ends: ExitStack) -> Case:
    return replace(of_celery(folder, ends), sent=signal.SIGKILL, cause="process_killed")


def of_kafka(folder: Path, ends: ExitStack) -> Case:
    from confluent_kafka.admin import NewTopic

    for name in ("libraries", "server"):
        (folder / name).mkdir()
    server = Kafka(fetched(folder / "libraries"), folder / "server")
    ends.callback(server.end)
    server.admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(20)
    consumer = running(ends, KAFKA_CONSUMER, server.address)
    running(ends, KAFKA_PRODUCER, server.address)
    return Case(
        consumer.pid,
        {"queue": "orders", "partition": "0", "consumer_group": "billing"},
        ("--kafka", f"kafka://{server.address}?groups=billing"),
        above={"length": 20, "oldest_s": 1},
    )


def of_rabbitmq(folder: Path, ends: ExitStack) -> Case:
    server = rabbitmq.Rabbit(folder)
    ends.callback(server.end)
    server.declare("orders")
    ends.enter_context(rabbitmq.client("publish", server.port, "orders", 40))
    consumer = ends.enter_context(rabbitmq.client("consume", server.port, "orders", 10))
    shown = {"queue": "orders", "consumers": 1, "pending": 10, "peer": f"127.0.0.1:{server.port}"}
    return Case(consumer.pid, shown, ("--rabbitmq", server.url))


def of_nats(folder: Path, ends: ExitStack) -> Case:
    server = nats.Nats(folder)
    ends.callback(server.end)
    js = server.client()
    js.stream("orders")
    js.consumer("orders", "billing")
    js.close()
    ends.enter_context(nats.client("publish", server.port, "orders.a", 40))
    consumer = ends.enter_context(nats.client("consume", server.port, "orders", "billing", 10))
    shown = {"queue": "orders", "consumer_group": "billing", "peer": f"127.0.0.1:{server.port}"}
    return Case(consumer.pid, shown, ("--nats", server.url), above={"length": 100, "pending": 0})


def of_etcd(folder: Path, ends: ExitStack) -> Case:
    """Two clusters: the process that copies a prefix is stopped."""
    ports = []
    for name in ("west", "east"):
        cluster = etcd.Etcd(folder / name, name=name)
        ends.callback(cluster.end)
        ports.append(cluster.nodes[0].port)
    source, copy = ports
    ends.enter_context(etcd.client("write", source, "/shop/", 20))
    copier = ends.enter_context(etcd.client("copy", source, copy, "/shop/"))
    shown = {"queue": "/shop/", "consumer_group": f"copy 127.0.0.1:{copy}", "peer": f"127.0.0.1:{source}"}
    url = f"http://127.0.0.1:{source}?prefix=/shop/&copy=http://127.0.0.1:{copy}"
    return Case(copier.pid, shown, ("--etcd", url), above={"length": 50})


def of_postgresql(_: Path, ends: ExitStack) -> Case:
    server = postgresql.Postgres()
    ends.callback(server.end)
    server.do(postgresql.TABLE)
    ends.enter_context(postgresql.client("produce", server.port, 40))
    worker = ends.enter_context(postgresql.client("work", server.port, 0.001))
    query = " ".join(postgresql.QUERY.split())
    shown = {"queue": "mail", "status": "stalled", "peer": f"127.0.0.1:{server.port}"}
    return Case(worker.pid, shown, config=f'postgresql:\n  - url: {server.url}\n    query: "{query}"\n')


#: The first word is the system.
SYSTEMS = {
    "celery": of_celery,
    "celery killed": of_killed_celery,
    "kafka": of_kafka,
    "rabbitmq": of_rabbitmq,
    "nats": of_nats,
    "etcd": of_etcd,
    "postgresql": of_postgresql,
}


@pytest.mark.parametrize("kind", SYSTEMS)
def test_a_stopped_consumer_is_a_finding_that_names_it(start: Callable[..., Agent], tmp_path: Path, kind: str) -> None:
    with ExitStack() as ends:
        case, system = SYSTEMS[kind](tmp_path, ends), kind.partition(" ")[0]
        name, page = str(case.shown["queue"]), free_port()
        agent = start(*case.options, config=f"prometheus: 127.0.0.1:{page}\n{case.config}").ready()
        agent.rows("queue_lag", f"destination = '{name}' AND lag_messages IS NOT NULL", USUAL, limit_s=60)

        def lags() -> list[dict[str, Any]]:
            return [row for row in agent.json("findings")["rows"] if row["symptom"] == "queue_lag"]

        assert not [row for row in lags() if name in row["subject"]]
        os.kill(case.consumer, case.sent)
        (finding, *_) = agent.until(lambda: [row for row in lags() if row["culprit_pid"] == case.consumer])
        assert name in finding["subject"], finding
        # a killed one may be gone before its connections are known as its own
        causes = {case.cause, "consumer_stopped"} if case.sent == signal.SIGKILL else {case.cause}
        assert finding["cause"] in causes, finding

        def behind() -> list[dict[str, Any]]:
            rows = [row for row in agent.json("queues")["rows"] if (row["system"], row["queue"]) == (system, name)]
            rows = [row for row in rows if all(row[column] == value for column, value in case.shown.items())]
            return [row for row in rows if all((row[column] or 0) > least for column, least in case.above.items())]

        agent.until(behind)
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        found = [line for line in lines if line.startswith("tickscope_queue_lag{") and f'name="{name}"' in line]
        assert [f'system="{system}"' in line for line in found] == [True], found
        assert float(found[0].rpartition(" ")[2]) > case.above["length"]
