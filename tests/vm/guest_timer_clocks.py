"""In the VM: which clock the timers of real servers run on. tests/vm/README.md has the command.

Each timer is tried twice. One of an hour must have fired after a step of +2 h if it runs on the wall clock. One of a
few seconds must still wait after a step of -2 h and more than these seconds. A timer on a monotonic clock does neither.

Prints a JSON object a timer: system, version, kind, and what it did at each step.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.lab.stage.wallclock import require_throwaway, step

STEP_S, LONG_S = 7200.0, 3600.0


@dataclass(frozen=True)
class Tried:
    """One timer. begin: starts it, for so many seconds. fired: whether it has. short_s: of the try with the step back.
    settle_s: how long after it is due it may still wait for its server's next round.
    """

    system: str
    version: str
    kind: str
    begin: Callable[[float], None]
    fired: Callable[[], bool]
    short_s: float = 3.0
    settle_s: float = 3.0


def clock(early: bool, late: bool) -> str:
    """early: it fired at the step forward; late: it had not fired after the step back."""
    return {(True, True): "wall", (False, False): "monotonic"}.get((early, late), "mixed")


@contextmanager
def stepped(seconds: float) -> Iterator[None]:
    """The clock is stepped, and back at the end."""
    step(seconds)
    try:
        yield
    finally:
        step(-seconds)


def watched(fired: Callable[[], bool], seconds: float) -> bool:
    """Whether it fires within that time, CLOCK_MONOTONIC."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if fired():
            return True
        time.sleep(0.2)
    return fired()


def tried(one: Tried) -> dict[str, Any]:
    one.begin(LONG_S)
    assert not one.fired(), f"{one.kind}: fired at once"
    with stepped(STEP_S):
        early = watched(one.fired, one.settle_s)
    one.begin(one.short_s)
    with stepped(-STEP_S):
        late = not watched(one.fired, one.short_s + one.settle_s)
    one.begin(one.short_s)
    assert watched(one.fired, 4 * (one.short_s + one.settle_s)), f"{one.kind}: does not fire without a step"
    return {
        "system": one.system,
        "version": one.version,
        "kind": one.kind,
        "fires_at_forward": early,
        "waits_at_backward": late,
        "clock": clock(early, late),
    }


def redis_timers(root: Path) -> Iterator[Tried]:
    from tests.servers.test_redis_streams import Redis

    server = Redis(root)
    info: Any = server.do("INFO", "server")
    lines = dict(line.split(":", 1) for line in info.decode().split("\r\n") if ":" in line)
    name = "valkey" if "valkey_version" in lines else "redis"
    version = lines.get("valkey_version", lines["redis_version"])

    def at(seconds: float) -> None:
        when: Any = server.do("TIME")
        server.do("SET", "at", "1")
        server.do("PEXPIREAT", "at", int((int(when[0]) + seconds) * 1000))

    idle_s = 0.0

    def pending(seconds: float) -> None:
        nonlocal idle_s
        idle_s = seconds
        server.do("DEL", "jobs")
        server.do("XADD", "jobs", "*", "n", "1")
        server.do("XGROUP", "CREATE", "jobs", "workers", "0")
        server.do("XREADGROUP", "GROUP", "workers", "w1", "STREAMS", "jobs", ">")

    def claimable() -> bool:
        """XAUTOCLAIM of JUSTID would reset nothing, but takes the entry; XPENDING IDLE applies the same condition."""
        found: Any = server.do("XPENDING", "jobs", "workers", "IDLE", int(idle_s * 1000), "-", "+", 1)
        return bool(found)

    def claimed() -> bool:
        found: Any = server.do("XAUTOCLAIM", "jobs", "workers", "w2", int(idle_s * 1000), "0", "JUSTID")
        return bool(found[1])

    try:
        yield Tried(
            name,
            version,
            "key expiry",
            lambda s: server.do("SET", "in", "1", "PX", int(s * 1000)) and None,
            lambda: server.do("EXISTS", "in") == 0,
        )
        yield Tried(name, version, "key expiry at a time", at, lambda: server.do("EXISTS", "at") == 0)
        yield Tried(name, version, "idle time of pending entries", pending, claimable)
        yield Tried(name, version, "XAUTOCLAIM", pending, claimed)
    finally:
        server.stop()


def kombu_timers(root: Path) -> Iterator[Tried]:
    import kombu
    from kombu.transport import redis as transport

    from tests.servers.test_redis_streams import Redis

    server = Redis(root)
    opened: list[Any] = []

    def begin(seconds: float) -> None:
        for one in opened:
            one.close()
        opened.clear()
        server.do("FLUSHALL")
        connection = kombu.Connection(server.url, transport_options={"visibility_timeout": seconds})
        opened.append(connection)
        queue = connection.SimpleQueue("jobs")
        queue.put("one")
        queue.get(timeout=60)  # it is never acknowledged
        assert server.do("ZCARD", "unacked_index") == 1
        opened.append(queue)
        opened.reverse()

    def restored() -> bool:
        channel = opened[0].channel
        channel.qos.restore_visible(interval=1)
        return server.do("LLEN", "jobs") == 1

    assert transport
    try:
        yield Tried("kombu", kombu.__version__, "redelivery", begin, restored)
    finally:
        for one in opened:
            one.close()
        server.stop()


def celery_timers(root: Path) -> Iterator[Tried]:
    """A task with a countdown that a worker holds."""
    import celery

    from tests.servers.celery_pieces import Worker, application, wait
    from tests.servers.test_redis_streams import Redis

    server = Redis(root)
    options = {"visibility_timeout": 1_000_000}
    worker = Worker(server.url, root, options=options)
    app = application(server.url, **options)
    sent: list[str] = []

    def begin(seconds: float) -> None:
        held: Any = server.do("ZCARD", "unacked_index")
        sent.append(app.send_task("early", (0,), countdown=seconds).id)
        wait(lambda: server.do("ZCARD", "unacked_index") == held + 1)
        time.sleep(2)

    try:
        yield Tried("celery", celery.__version__, "eta", begin, lambda: sent[-1] in worker.did("begin"), 20.0, 15.0)
    finally:
        worker.end()
        server.stop()


class RabbitTries:
    """A node with one queue for each try. Expired messages are counted in the queue to which they are dead-lettered,
    so that nothing is asked of the queue itself.
    """

    def __init__(self, root: Path) -> None:
        from tests.servers.rabbitmq import Rabbit

        self.server, self._name, self._number = Rabbit(root), "", 0
        self._channel = self.server.connect().channel()
        self._channel.queue_declare("dead", durable=True, auto_delete=False)

    def declare(self, kind: str, **more: Any) -> None:
        """A new queue; the former is deleted."""
        if self._name:
            self._channel.queue_delete(self._name)
        self._channel.queue_purge("dead")
        self._number += 1
        self._name = f"queue {self._number}"
        named = {"x-queue-type": kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", **more}
        self._channel.queue_declare(self._name, durable=True, auto_delete=False, arguments=named)

    def publish(self, n: int = 1, **properties: Any) -> None:
        import amqp

        for _ in range(n):
            self._channel.basic_publish(amqp.Message("m", **properties), routing_key=self._name)

    def with_ttl(self, kind: str, n: int = 1) -> Callable[[float], None]:
        def begin(seconds: float) -> None:
            self.declare(kind, **{"x-message-ttl": int(seconds * 1000)})
            self.publish(n)

        return begin

    def expiring(self, seconds: float) -> None:
        self.declare("classic")
        self.publish(expiration=str(int(seconds * 1000)))

    def unused(self, seconds: float) -> None:
        self.declare("classic", **{"x-expires": int(seconds * 1000)})

    def dead(self) -> bool:
        return bool(self._channel.queue_declare("dead", passive=True)[1])

    def dead_if_published(self) -> bool:
        """While others publish to the queue."""
        self.publish()
        return self.dead()

    def dead_if_taken(self) -> bool:
        """Behind a message that a consumer takes."""
        if self._channel.queue_declare(self._name, passive=True)[1] == 2:
            self._channel.basic_get(self._name, no_ack=True)
        return self.dead()

    def deleted(self) -> bool:
        return self._name not in {one["name"] for one in self.server.manage("GET", "queues?columns=name")}


def rabbitmq_timers(root: Path) -> Iterator[Tried]:
    its = RabbitTries(root)
    try:
        version = its.server.manage("GET", "overview?columns=rabbitmq_version")["rabbitmq_version"]
        for kind in ("classic", "quorum"):
            name = f"message TTL of a {kind} queue"
            for more, n, fired in (
                ("", 1, its.dead),
                (", published to", 1, its.dead_if_published),
                (", consumed", 2, its.dead_if_taken),
            ):
                yield Tried("rabbitmq", version, name + more, its.with_ttl(kind, n), fired, 15.0, 10.0)
        yield Tried("rabbitmq", version, "expiration of a message", its.expiring, its.dead, 15.0, 10.0)
        yield Tried("rabbitmq", version, "x-expires of a queue", its.unused, its.deleted, 15.0, 10.0)
    finally:
        its.server.end()


def kafka_timers(root: Path) -> Iterator[Tried]:
    """Its libraries are in /run/out/kafka-libraries, or fetched."""
    from confluent_kafka import Producer, TopicPartition
    from confluent_kafka.admin import NewTopic, OffsetSpec

    from tests.servers.kafka_server import VERSION, Kafka, fetched

    libraries = Path("/run/out/kafka-libraries")
    often = {"log.retention.check.interval.ms": 1000, "log.initial.task.delay.ms": 1000}
    server = Kafka(libraries if libraries.exists() else fetched(root), root, **often)
    topics: list[str] = []

    def kept(by: str) -> Callable[[float], None]:
        def begin(seconds: float) -> None:
            topics.append(f"topic{len(topics)}")
            config = {"retention.ms": str(int(seconds * 1000)), "message.timestamp.type": by}
            new = NewTopic(topics[-1], 1, 1, config=config)
            server.admin.create_topics([new])[topics[-1]].result(120)
            producer = Producer({"bootstrap.servers": server.address, "linger.ms": 0})
            for n in range(3):
                producer.produce(topics[-1], str(n))
            assert producer.flush(120) == 0

        return begin

    def deleted() -> bool:
        at = TopicPartition(topics[-1], 0)
        return bool(server.admin.list_offsets({at: OffsetSpec.earliest()})[at].result(120).offset)

    try:
        for by in ("CreateTime", "LogAppendTime"):
            yield Tried("kafka", VERSION, f"retention by {by}", kept(by), deleted, 15.0, 10.0)
    finally:
        server.stop()


def postgresql_timers(root: Path) -> Iterator[Tried]:
    import psycopg2

    from tests.servers.postgresql import TABLE, Postgres

    server = Postgres()
    server.do(TABLE)
    ((version,),) = server.do("SHOW server_version")
    running: list[Any] = []

    def delayed(seconds: float) -> None:
        server.do("TRUNCATE jobs")
        server.do(f"INSERT INTO jobs (run_at) VALUES (now() + interval '{seconds} s')")

    def due() -> bool:
        return bool(server.do("SELECT count(*) FROM jobs WHERE state = 'ready' AND run_at <= now()")[0][0])

    def statement(seconds: float) -> None:
        for one in running:
            one.close()
        connection = psycopg2.connect(server.url, async_=1, options=f"-c statement_timeout={int(seconds * 1000)}")
        running[:] = [connection]
        while connection.poll() != psycopg2.extensions.POLL_OK:
            time.sleep(0.05)
        running.append(connection.cursor())
        running[-1].execute("SELECT pg_sleep(1000000)")

    def cancelled() -> bool:
        try:
            running[0].poll()
        except psycopg2.errors.QueryCanceled:
            return True
        except psycopg2.Error as error:
            return "statement timeout" in str(error)
        return False

    try:
        yield Tried("postgresql", version.split()[0], "delayed job", delayed, due, 15.0, 10.0)
        yield Tried("postgresql", version.split()[0], "statement_timeout", statement, cancelled, 15.0, 10.0)
    finally:
        for one in running:
            one.close()
        server.end()


SYSTEMS: dict[str, Callable[[Path], Iterator[Tried]]] = {
    "redis": redis_timers,
    "kombu": kombu_timers,
    "celery": celery_timers,
    "rabbitmq": rabbitmq_timers,
    "postgresql": postgresql_timers,
    "kafka": kafka_timers,
}


def main() -> None:
    require_throwaway()
    for name in sys.argv[1:]:
        print(f"{name} starts", file=sys.stderr, flush=True)  # this takes minutes for some
        with tempfile.TemporaryDirectory() as directory:
            for one in SYSTEMS[name](Path(directory)):
                print(json.dumps(tried(one)), flush=True)


if __name__ == "__main__":
    main()
