"""In the VM: which clock the timers of real servers run on. tests/vm/README.md has the command.

Each timer is tried twice. One of an hour must have fired after a step of +2 h if it runs on the wall clock. One of a
few seconds must still wait after a step of -2 h and more than these seconds. A timer on a monotonic clock does neither;
one that waits for both clocks does the second only.

A server may look at all of its timers when the first one is due. Such timers are tried once more behind another one:
the first is due in a few seconds, the second half of that time later. At a step of +2 h, the second must not wait for
its own time.

Prints a JSON object a timer: system, version, kind, and what it did at each step. ``nats@trixie`` is the server of
Debian 13, which the host has unpacked (tests/releases.py).
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from agent.lab.stage.wallclock import require_throwaway, step
from tests.patience import until
from tests.releases import program, unpacked

if TYPE_CHECKING:
    from tests.servers.nats import NatsClient
    from tests.servers.rabbitmq import Rabbit

STEP_S, LONG_S = 7200.0, 3600.0
#: Of a timer that has another one behind it: half of it is more than the requests of an emulated machine take.
BEHIND_S = 60.0
#: With a system's server, in a root of another release.
PACKAGES = {
    "redis": "redis-server",
    "valkey": "valkey-server",
    "rabbitmq": "rabbitmq-server",
    "postgresql": "postgresql",
}
#: After the kind of such a timer.
BEHIND = " behind another"


@dataclass(frozen=True)
class Tried:
    """One timer. begin: starts it, for so many seconds. fired: whether it has. short_s: of the try with the step back.
    settle_s: how long after it is due it may still wait for its server's next round. behind: starts a second one, which
    ``fired`` is then about.
    """

    system: str
    version: str
    kind: str
    begin: Callable[[float], None]
    fired: Callable[[], bool]
    short_s: float = 3.0
    settle_s: float = 3.0
    behind: Callable[[], None] | None = None


def clock(early: bool, late: bool) -> str:
    """early: it fired at the step forward; late: it had not fired after the step back."""
    return {(True, True): "wall", (False, False): "monotonic", (False, True): "both"}.get((early, late), "mixed")


@contextmanager
def stepped(seconds: float) -> Iterator[None]:
    """The clock is stepped, and back at the end."""
    step(seconds)
    try:
        yield
    finally:
        step(-seconds)


def begin(ones: Sequence[Tried], long: bool = False) -> float:
    """Begins each; a second one half of its time after the first, and those without a second one then. long: the
    latter with an hour. Returns when the first of the second ones is due, CLOCK_MONOTONIC.
    """
    second_s = inf
    behind = [one for one in ones if one.behind is not None]
    for one in behind:
        one.begin(one.short_s)
    time.sleep(max((one.short_s / 2 for one in behind), default=0.0))
    for one in ones:
        if one.behind is None:
            one.begin(LONG_S if long else one.short_s)
        else:
            second_s = min(second_s, time.monotonic() + one.short_s)
            one.behind()
    return second_s


def watched(ones: Sequence[Tried], seconds: float) -> list[bool]:
    """Which of them fire within that time, CLOCK_MONOTONIC."""
    fired, end = [False] * len(ones), time.monotonic() + seconds
    while True:
        last = time.monotonic() >= end
        fired = [done or one.fired() for done, one in zip(fired, ones, strict=True)]
        if last or all(fired):
            return fired
        time.sleep(0.2 if len(ones) == 1 else 5.0)  # they are asked one after another


def tried(ones: Sequence[Tried]) -> list[dict[str, Any]]:
    """Timers that do not depend on each other, at the same steps."""
    settle_s = max(one.settle_s for one in ones)
    long_s = max(one.short_s * (1.5 if one.behind else 1) for one in ones)
    second_s = begin(ones, long=True)
    time.sleep(1)  # a server may answer before it has set its timer
    assert not any(one.fired() for one in ones)
    with stepped(STEP_S):
        # A first one that is due in a few seconds takes the second one with it.
        left_s = max((one.short_s / 2 for one in ones if one.behind), default=0.0)
        early = watched(ones, left_s + settle_s)
        assert time.monotonic() < second_s
    begin(ones)
    with stepped(-STEP_S):
        late = [not fired for fired in watched(ones, long_s + settle_s)]
    begin(ones)
    for one, fired in zip(ones, watched(ones, 4 * (long_s + settle_s)), strict=True):
        assert fired, f"{one.kind}: does not fire without a step"
    return [
        {
            "system": one.system,
            "version": one.version,
            "kind": one.kind,
            "fires_at_forward": early[i],
            "waits_at_backward": late[i],
            "clock": clock(early[i], late[i]),
        }
        for i, one in enumerate(ones)
    ]


def redis_timers(root: Path, system: str) -> Iterator[list[Tried]]:
    """Of Redis or of Valkey."""
    from tests.servers.rabbitmq import in_root
    from tests.servers.test_redis_streams import Redis

    name = system.partition("@")[0]
    server = Redis(root, command=(*in_root(other_root(system), root), f"{name}-server"))
    info: Any = server.do("INFO", "server")
    lines = dict(line.split(":", 1) for line in info.decode().split("\r\n") if ":" in line)
    version = {"redis": lines["redis_version"], "valkey": f"valkey {lines.get('valkey_version')}"}[name]

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
        key = Tried(
            "redis",
            version,
            "key expiry",
            lambda s: server.do("SET", "in", "1", "PX", int(s * 1000)) and None,
            lambda: server.do("EXISTS", "in") == 0,
        )
        yield [key, Tried("redis", version, "key expiry at a time", at, lambda: server.do("EXISTS", "at") == 0)]
        yield [Tried("redis", version, "idle time of pending entries", pending, claimable)]
        yield [Tried("redis", version, "XAUTOCLAIM", pending, claimed)]
    finally:
        server.end()


def kombu_timers(root: Path, _: str) -> Iterator[list[Tried]]:
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
        yield [Tried("kombu", kombu.__version__, "redelivery", begin, restored)]
    finally:
        for one in opened:
            one.close()
        server.end()


def celery_timers(root: Path, _: str) -> Iterator[list[Tried]]:
    """A task with a countdown that a worker holds."""
    import celery

    from tests.servers.celery_pieces import Worker, application
    from tests.servers.test_redis_streams import Redis

    server = Redis(root)
    options = {"visibility_timeout": 1_000_000}
    worker = Worker(server.url, root, options=options)
    app = application(server.url, **options)
    sent: list[str] = []

    def begin(seconds: float) -> None:
        held: Any = server.do("ZCARD", "unacked_index")
        sent.append(app.send_task("early", (0,), countdown=seconds).id)
        until(lambda: server.do("ZCARD", "unacked_index") == held + 1)
        time.sleep(2)

    try:
        began = lambda: sent[-1] in worker.did("begin")  # noqa: E731
        yield [Tried("celery", celery.__version__, "eta", begin, began, 20.0, 15.0)]
    finally:
        worker.end()
        server.end()


class RabbitQueue:
    """A queue of a try's own, made anew by each ``begin``. Expired messages are counted in the queue to which they are
    dead-lettered, so that nothing is asked of the queue itself.
    """

    def __init__(self, server: Rabbit, name: str) -> None:
        self._server, self._of, self._name, self._number = server, name, "", 0
        self._channel = server.connect().channel()
        self._channel.queue_declare(f"dead {name}", durable=True, auto_delete=False)

    def declare(self, kind: str, **more: Any) -> None:
        """A new queue; the former is deleted."""
        if self._name:
            self._channel.queue_delete(self._name)
        self._channel.queue_purge(f"dead {self._of}")
        self._number += 1
        self._name = f"{self._of} {self._number}"
        to = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"dead {self._of}"}
        named = {"x-queue-type": kind, **to, **more}
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

    def dead(self, n: int = 1) -> bool:
        return int(self._channel.queue_declare(f"dead {self._of}", passive=True)[1]) >= n

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
        return self._name not in {one["name"] for one in self._server.manage("GET", "queues?columns=name")}


def rabbitmq_timers(root: Path, system: str) -> Iterator[list[Tried]]:
    from tests.servers.rabbitmq import Rabbit

    server = Rabbit(root, root=other_root(system))
    alone, behind = list[Tried](), list[Tried]()

    def add(kind: str, begin: Callable[[float], None], fired: Callable[[], bool]) -> None:
        alone.append(Tried("rabbitmq", version, kind, begin, fired, 15.0, 10.0))

    try:
        version = server.manage("GET", "overview?columns=rabbitmq_version")["rabbitmq_version"]
        for kind in ("classic", "quorum"):
            name = f"message TTL of a {kind} queue"
            one, published, consumed, first = (RabbitQueue(server, f"{kind} {number}") for number in range(4))
            add(name, one.with_ttl(kind), one.dead)
            add(f"{name}, published to", published.with_ttl(kind), published.dead_if_published)
            add(f"{name}, consumed", consumed.with_ttl(kind, 2), consumed.dead_if_taken)
            begin, both = first.with_ttl(kind), partial(first.dead, 2)
            behind.append(Tried("rabbitmq", version, name + BEHIND, begin, both, BEHIND_S, 10.0, first.publish))
        expiring, unused = RabbitQueue(server, "expiring"), RabbitQueue(server, "unused")
        add("expiration of a message", expiring.expiring, expiring.dead)
        add("x-expires of a queue", unused.unused, unused.deleted)
        yield [*alone, *behind]
    finally:
        server.end()


def kafka_timers(root: Path, _: str) -> Iterator[list[Tried]]:
    """Its libraries are in /run/out/kafka-libraries, or fetched."""
    from confluent_kafka import Producer, TopicPartition
    from confluent_kafka.admin import NewTopic, OffsetSpec

    from tests.servers.kafka_server import VERSION, Kafka, fetched

    libraries = Path("/run/out/kafka-libraries")
    often = {"log.retention.check.interval.ms": 1000, "log.initial.task.delay.ms": 1000}
    server = Kafka(libraries if libraries.exists() else fetched(root), root, **often)

    def kept(by: str) -> Tried:
        topics: list[str] = []

        def begin(seconds: float) -> None:
            topics.append(f"{by}{len(topics)}")
            config = {"retention.ms": str(int(seconds * 1000)), "message.timestamp.type": by}
            new = NewTopic(topics[-1], 1, 1, config=config)
            server.admin.create_topics([new])[topics[-1]].result(120)
            producer = Producer({"bootstrap.servers": server.address, "linger.ms": 0})
            for n in range(3):
                producer.produce(topics[-1], str(n))
            assert producer.flush(120) == 0

        def deleted() -> bool:
            at = TopicPartition(topics[-1], 0)
            return bool(server.admin.list_offsets({at: OffsetSpec.earliest()})[at].result(120).offset)

        return Tried("kafka", VERSION, f"retention by {by}", begin, deleted, 15.0, 10.0)

    try:
        yield [kept(by) for by in ("CreateTime", "LogAppendTime")]
    finally:
        server.end()


def postgresql_timers(_: Path, system: str) -> Iterator[list[Tried]]:
    import psycopg2

    from tests.servers.postgresql import TABLE, Postgres

    server = Postgres(root=other_root(system))
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
        job = Tried("postgresql", version.split()[0], "delayed job", delayed, due, 15.0, 10.0)
        yield [job, Tried("postgresql", version.split()[0], "statement_timeout", statement, cancelled, 15.0, 10.0)]
    finally:
        for one in running:
            one.close()
        server.end()


def of_release(name: str, package: str, path: str) -> list[str]:
    """The beginning of a command line: this host's program, or that of another Debian release."""
    system, _, release = name.partition("@")
    if not release:
        return [Path(path).name]
    return program(unpacked(f"{release}-{system}", release, (package, "libc6")), path)


def other_root(name: str) -> Path | None:
    """The root of the Debian release after the @; None: this host's system."""
    from tests.servers.rabbitmq import release_root

    system, _, release = name.partition("@")
    return release_root(release, PACKAGES[system]) if release else None


class NatsStream:
    """A stream of a try's own, made anew by each ``begin``. config: of the stream, for so many seconds; consumer: of
    its consumer, if it has one.
    """

    def __init__(
        self,
        js: NatsClient,
        name: str,
        config: Callable[[int], dict[str, Any]],
        consumer: Callable[[int], dict[str, Any]] | None = None,
    ) -> None:
        self._js, self._name, self._config, self._consumer = js, name, config, consumer
        self._number, self._last = 0, b""

    @property
    def _stream(self) -> str:
        return f"{self._name}{self._number}"

    def begin(self, seconds: float) -> None:
        ns = int(seconds * 1e9)
        self._number += 1
        self._js.stream(self._stream, **self._config(ns))
        if self._consumer is not None:
            self._js.consumer(self._stream, "c", **self._consumer(ns))
        self.more()

    def more(self) -> None:
        """Another message, which is delivered if there is a consumer."""
        self._last = b"%d" % (int(self._last or 0) + 1)
        assert not self._js.put(f"{self._stream}.a", self._last)
        if self._consumer is not None:
            assert [one.data for one in self._js.pull(self._stream, "c", 1)] == [self._last]

    def empty(self) -> bool:
        return not self._js.api(f"STREAM.INFO.{self._stream}")["state"]["messages"]

    def delivered_again(self) -> bool:
        """Whether the last message is."""
        return self._last in [one.data for one in self._js.pull(self._stream, "c", 2, 0.5)]

    def taken_again(self) -> bool:
        """Whether the last message, sent once more, is no duplicate any more."""
        return not self._js.put(f"{self._stream}.a", self._last)


def nats_timers(root: Path, name: str) -> Iterator[list[Tried]]:
    from tests.servers.nats import Nats

    server = Nats(root, of_release(name, "nats-server", "usr/sbin/nats-server"))
    js = server.client()
    with urlopen(f"{server.url}/varz") as answer:
        version = json.load(answer)["version"]
    ones = []

    def add(kind: str, stream: Callable[[str], NatsStream], fired: Callable[[NatsStream], Callable[[], bool]]) -> None:
        alone, behind = (stream(f"{which}{len(ones)}") for which in ("alone", "behind"))
        ones.append(Tried("nats", version, kind, alone.begin, fired(alone), BEHIND_S / 3))
        ones.append(Tried("nats", version, kind + BEHIND, behind.begin, fired(behind), BEHIND_S, 3.0, behind.more))

    def aged(storage: str) -> Callable[[str], NatsStream]:
        return lambda name: NatsStream(js, name, lambda ns: {"storage": storage, "max_age": ns})

    try:
        for storage in ("memory", "file"):
            add(f"MaxAge, {storage}", aged(storage), lambda one: one.empty)
        add(
            "AckWait",
            lambda name: NatsStream(js, name, lambda _: {}, lambda ns: {"ack_wait": ns}),
            lambda one: one.delivered_again,
        )
        add(
            "duplicate window",
            lambda name: NatsStream(js, name, lambda ns: {"duplicate_window": ns}),
            lambda one: one.taken_again,
        )
        yield ones
    finally:
        js.close()
        server.end()


def etcd_timers(root: Path, name: str) -> Iterator[list[Tried]]:
    from tests.servers.etcd import Etcd, text

    server = Etcd(root / "etcd", 1, of_release(name, "etcd-server", "usr/bin/etcd"))
    node = server.nodes[0]

    def lease(key: str) -> Tried:
        def grant(seconds: float) -> None:
            node.put(key, lease=node.ask("lease/grant", {"TTL": str(int(seconds))})["ID"])

        def gone() -> bool:
            return not node.ask("kv/range", {"key": text(key)}).get("kvs")

        return Tried("etcd", node.status()["version"], "lease", grant, gone, 3.0, 4.0)

    try:
        yield [lease("leased")]
    finally:
        server.end()


SYSTEMS: dict[str, Callable[[Path, str], Iterator[list[Tried]]]] = {
    "redis": redis_timers,
    "valkey": redis_timers,
    "kombu": kombu_timers,
    "celery": celery_timers,
    "nats": nats_timers,
    "etcd": etcd_timers,
    "rabbitmq": rabbitmq_timers,
    "postgresql": postgresql_timers,
    "kafka": kafka_timers,
}


def main() -> None:
    require_throwaway()
    for name in sys.argv[1:]:
        print(f"{name} starts", file=sys.stderr, flush=True)  # this takes minutes for some
        with tempfile.TemporaryDirectory() as directory:
            for ones in SYSTEMS[name.partition("@")[0]](Path(directory), name):
                for found in tried(ones):
                    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
