"""A real Kafka (KRaft nodes, each broker and controller) with three listeners: plain, SASL and TLS."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE, until
from tests.ports import free_ports
from tests.servers.certificates import certificates
from tests.servers.process import ServerProcess

#: As in its pom.xml.
VERSION = "4.4.0"
#: The last release before 4.0, which many run still.
OLDER = "3.9.1"
POM = Path(__file__).parent / "kafka" / "pom.xml"
#: On the SASL listener. Clients of the plain listener may do all; these only what an ACL allows.
USERS = {"tickscope": "right", "other": "else"}
_JAVA = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def fetched(into: Path, version: str = VERSION) -> Path:
    """Kafka's libraries, by Maven. Skips the test if they cannot be had."""
    for needed in ("mvn", "java"):
        if shutil.which(needed) is None:
            pytest.skip(f"no {needed}: Kafka comes by Maven")
    fetch = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={into}"]
    got = subprocess.run([*fetch, f"-Dkafka={version}", "-f", str(POM)], cwd=into, capture_output=True, text=True)
    if got.returncode:
        pytest.skip(f"Kafka cannot be had: {got.stdout[-300:]}")
    return into


class Kafka(ServerProcess):
    """One node. plain, sasl, tls: ports of 127.0.0.1. ca: the file with which its certificate was signed. controllers:
    ports of all nodes, of which this is the one with the number ``node``; without them it is alone, and is started.
    settings: more of server.properties.
    """

    def __init__(
        self, libraries: Path, directory: Path, node: int = 1, controllers: Sequence[int] = (), **settings: object
    ) -> None:
        self.libraries, self.directory, self.node = libraries, directory, node
        self.plain, self.sasl, self.tls = free_ports(3)
        self.controllers = controllers or free_ports(1)
        self.ca, self.other_ca = directory / "ca.pem", directory / "other.pem"
        self._certificates()
        (directory / "server.properties").write_text(
            "\n".join(f"{k}={v}" for k, v in (self._properties() | settings).items())
        )
        self._run("kafka.tools.StorageTool", "format", "-t", "3Db5QLSqSZieL3rJBUUegA", "-c", "server.properties")
        if not controllers:
            self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.plain}"

    def start(self) -> None:
        self.launch()
        self.wait()

    def launch(self) -> None:
        command = [*_JAVA, "-cp", f"{self.libraries}/*", "kafka.Kafka", "server.properties"]
        self.run(command, cwd=self.directory)

    def wait(self) -> None:
        until(self._answers, 60, 0, why=self._written)

    def _written(self) -> str:
        return self.log.read_text()[-3000:]

    @cached_property
    def admin(self) -> Any:
        """An AdminClient. Its questions end with it, so there is one."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Offsets by partition, as of a consumer that has read so far, and then left."""
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        at = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, *one) for one in offsets.items()])

        def committed() -> bool:  # its coordinator may not know a new topic yet
            asked = self.admin.alter_consumer_group_offsets([at])[group]
            return not any(one.error for one in asked.result(20 * PATIENCE).topic_partitions)

        until(committed, 20)

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException

        assert self.process.poll() is None, self._written()
        try:
            return bool(self.admin.list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    def _run(self, *args: str) -> None:
        done = subprocess.run(
            [*_JAVA, "-cp", f"{self.libraries}/*", *args], cwd=self.directory, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    def _certificates(self) -> None:
        certificates(self.directory)
        both = "".join((self.directory / name).read_text() for name in ("server.key", "server.pem"))
        (self.directory / "keystore.pem").write_text(both)

    def _properties(self) -> dict[str, object]:
        controller = f"CONTROLLER://127.0.0.1:{self.controllers[self.node - 1]}"
        listeners = {"PLAIN": self.plain, "SASL": self.sasl, "TLS": self.tls}
        advertised = ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items())
        users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
        return {
            "process.roles": "broker,controller",
            "node.id": self.node,
            "controller.quorum.voters": ",".join(f"{i}@127.0.0.1:{at}" for i, at in enumerate(self.controllers, 1)),
            "listeners": f"{advertised},{controller}",
            "advertised.listeners": advertised,
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAIN",
            "listener.security.protocol.map": ("PLAIN:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL,CONTROLLER:PLAINTEXT"),
            "log.dirs": self.directory / "data",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": (
                f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.directory / "keystore.pem",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": 4,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.num.partitions": 2,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 500,
            "group.consumer.min.session.timeout.ms": 1000,
            "group.consumer.session.timeout.ms": 2000,
            "group.consumer.min.heartbeat.interval.ms": 500,
            "group.consumer.heartbeat.interval.ms": 500,
        }
