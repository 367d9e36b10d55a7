"""Kafka: one node that syncs each message to the run's disk, a producer, and a group of two consumers.

The server is that of the variable KAFKA_HOME, or of /opt/kafka.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agent.common.clocks import boot_ns
from agent.lab.program import FAR, Run
from agent.lab.programs.queue_work import BROKERS, Orders, OrderWork, broker_programs

SYSTEM, TOPIC, GROUP = "kafka", "events", "audit"
PORT, PARTITIONS = BROKERS[SYSTEM].port, 2
_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
_COMMON = {"bootstrap.servers": f"{FAR}:{PORT}", "log_level": 0}
CONSUMING: dict[str, Any] = {
    **_COMMON,
    "group.id": GROUP,
    "auto.offset.reset": "earliest",
    "auto.commit.interval.ms": 500,
    "session.timeout.ms": 4000,
    "heartbeat.interval.ms": 1000,
    "topic.metadata.refresh.interval.ms": 2000,
}


def _libraries() -> Path:
    return Path(os.environ.get("KAFKA_HOME") or "/opt/kafka") / "libs"


def available(_shared: Path) -> None:
    if not any(_libraries().glob("kafka_*.jar")):
        raise FileNotFoundError(f"there is no Kafka in {_libraries()}: set KAFKA_HOME to its directory")
    if shutil.which("java") is None:
        raise FileNotFoundError("Java is not installed (apt install default-jre-headless)")
    if find_spec("confluent_kafka") is None:
        raise FileNotFoundError("a client of Kafka is not installed (pip install confluent-kafka)")


def serve(run: Run) -> None:
    data = run.shared / "disk" / "kafka"
    properties = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{PORT + 1}",
        "listeners": f"PLAINTEXT://{FAR}:{PORT},CONTROLLER://127.0.0.1:{PORT + 1}",
        "advertised.listeners": f"PLAINTEXT://{FAR}:{PORT}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": data,
        "log.flush.interval.messages": 1,
        "log.index.size.max.bytes": 1 << 20,
        "log.segment.bytes": 16 << 20,
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": 4,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1000,
    }
    (run.directory / "server.properties").write_text("\n".join(f"{k}={v}" for k, v in properties.items()))
    os.chdir(run.directory)
    java = shutil.which("java") or ""
    command = [java, *_JAVA, "-cp", f"{_libraries()}/*"]
    if not (data / "meta.properties").exists():
        identity = ("format", "-t", "3Db5QLSqSZieL3rJBUUegA", "-c", "server.properties")
        subprocess.run([*command, "kafka.tools.StorageTool", *identity], check=True, stdout=subprocess.DEVNULL)
    os.execve(java, [*command, "kafka.Kafka", "server.properties"], {"PATH": os.environ.get("PATH", "")})


def _make_topic() -> None:
    """Waits until there is the topic."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient(_COMMON)
    while True:
        try:
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(20)
            return
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            time.sleep(0.5)


def consume(run: Run) -> None:
    from confluent_kafka import Consumer

    run.listen()
    _make_topic()
    work, consumer = OrderWork(run), Consumer(CONSUMING | {"client.id": run.program.name})
    consumer.subscribe([TOPIC])
    while True:
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error():
            run.log("handle", boot_ns(), "down")
            continue
        work(json.loads(message.value())["sent_ns"], poison=False)


def produce(run: Run) -> None:
    from confluent_kafka import Producer

    _make_topic()
    orders, producer = Orders(run), Producer(_COMMON | {"acks": "all", "message.timeout.ms": 20000})
    n = 0
    while True:
        start_ns, _ = orders.next()
        failed: list[Any] = []
        producer.produce(
            TOPIC,
            json.dumps({"sent_ns": start_ns}),
            partition=n % PARTITIONS,
            on_delivery=lambda error, _, failed=failed: failed.append(error),
        )
        n += 1
        producer.flush(25)
        run.log("add", start_ns, "ok" if failed == [None] else "down")


PROGRAMS = broker_programs(
    SYSTEM,
    TOPIC,
    serve,
    produce,
    consume,
    comm="java",
    polled=("kafka", f"kafka://{FAR}:{PORT}"),
    prepare=available,
)
