"""Our figures beside those of other exporters, and the truth, on the same servers:
``python -m tests.bench.queue_peers [--redis-exporter FILE] [--kafka-exporter FILE] [--burrow FILE]``.

FILE: the peer's program (redis_exporter of oliver006, kafka_exporter of danielqsj, Burrow of LinkedIn), by default the
one in PATH; one that is missing is left out. One Redis and one Kafka; each scenario is a queue of its own, and its
truth is what a client reads that reads all of it. All figures are taken while nothing changes. For Redis also what a
poll of the same streams costs the server, in commands and processor time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hiredis
import numpy as np

from agent.columns import NULL_I64
from agent.queues.brokers.kafka import BROKER as KAFKA
from agent.queues.brokers.redis import BROKER as REDIS
from agent.queues.packing import TABLE, pack
from agent.queues.queue import Queue
from tests.bench.kafka import cpu_s
from tests.ports import free_ports
from tests.servers.kafka_server import Kafka, fetched
from tests.servers.test_redis_streams import Redis

POLLS = 5
#: Burrow judges the last INTERVALS commits.
INTERVALS = 6
#: Less than Kafka's session.timeout.ms: the consumer is still a member of its group.
STOPPED_S = 40


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())


@contextlib.contextmanager
def peer(command: Sequence[str], ready: str, cwd: str) -> Iterator[None]:
    """A peer that runs until the end; ready: a page that it answers."""
    with Path(cwd, "peer.log").open("wb") as log, subprocess.Popen(command, cwd=cwd, stdout=log, stderr=log) as process:
        try:
            until = time.monotonic() + 60
            while True:
                with contextlib.suppress(OSError):
                    get(ready)
                    break
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"{command[0]} does not run: {Path(cwd, 'peer.log').read_text()[-500:]}")
                time.sleep(0.2)
            yield
        finally:
            process.kill()


def metrics(page: str, name: str) -> dict[tuple[str, str], float]:
    """A metric's values by (queue, group), of one partition each."""
    found = {}
    for labels, value in re.findall(rf"^{name}\{{(.*)\}} (\S+)$", page, re.MULTILINE):
        of = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        found[of.get("stream") or of["topic"], of.get("group") or of["consumergroup"]] = float(value)
    return found


def polled(queue: Queue, seconds: int) -> None:
    for _ in range(seconds):
        queue.poll()
        time.sleep(1)


def ours(queue: Queue) -> dict[tuple[str, str], str]:
    """lag_messages, with its lower bound where it has one, lag_s, and the status; of the groups at the latest poll."""
    found = {}
    for row in np.frombuffer(pack(queue.poll()), TABLE.dtype):
        lag, least, seconds = int(row["lag_messages"]), int(row["lag_at_least"]), float(row["lag_s"])
        figure = "unknown" if lag == NULL_I64 else f"{lag}" if least == NULL_I64 else f"{least} to {lag}"
        age = "" if math.isnan(seconds) else f", {seconds:.0f} s"
        found[row["destination"].decode(), row["consumer_group"].decode()] = f"{figure}{age} ({row['status'].decode()})"
    return found


def table(
    title: str, truth: dict[str, tuple[tuple[str, str], str]], sides: dict[str, dict[tuple[str, str], Any]]
) -> None:
    print(f"\n| {title} | truth | {' | '.join(sides)} |\n|{'---|' * (2 + len(sides))}")
    for scenario, (key, right) in truth.items():
        figures = [str(side.get(key, "none")).removesuffix(".0") for side in sides.values()]
        print(f"| {scenario} | {right} | {' | '.join(figures)} |")


# --- Redis -----------------------------------------------------------------------------------------------------------


def unread(redis: Redis, stream: str) -> str:
    """Entries that a group's next reads would return: read as a consumer does, after everything was measured."""
    n = 0
    while True:
        try:
            got: Any = redis.do("XREADGROUP", "GROUP", "g", "truth", "COUNT", 1000, "STREAMS", stream, ">")
        except hiredis.ReplyError as error:
            return f"no group: {str(error).partition(' ')[0]}"
        if not got:
            return str(n)
        n += len(got[0][1])


def redis_scenarios(redis: Redis) -> dict[str, str]:
    """Scenario -> its stream, with 1,000 entries and a group that has read 400."""

    def stream(name: str, read: int = 400) -> str:
        redis.add(name, 1000, age_ms=60_000)
        redis.do("XGROUP", "CREATE", name, "g", "0")
        if read:
            redis.do("XREADGROUP", "GROUP", "g", "c", "COUNT", read, "STREAMS", name, ">")
        return name

    def ids(name: str) -> list[Any]:
        return [entry[0] for entry in redis.do("XRANGE", name, "-", "+")]  # type: ignore[attr-defined]

    made = {"600 of 1,000 unread": stream("plain")}
    made["the same, 300 unread ones trimmed"] = name = stream("trimmed")
    redis.do("XTRIM", name, "MAXLEN", "300")
    made["the same, one unread entry deleted"] = name = stream("deleted")
    redis.do("XDEL", name, ids(name)[700])
    made["the same, every second unread entry deleted"] = name = stream("holes")
    redis.do("XDEL", name, *ids(name)[400::2])
    made["group made at an entry in the middle"] = name = stream("middle", 0)
    redis.do("XGROUP", "CREATE", name, "late", ids(name)[749])
    made["group set back with a wrong ENTRIESREAD"] = name = stream("wrong")
    redis.do("XGROUP", "SETID", name, "g", ids(name)[699], "ENTRIESREAD", "999")
    made["group deleted while consumers ask for it"] = name = stream("gone")
    return made


def on_redis(program: str | None, directory: str) -> None:
    redis = Redis(Path(directory), "--latency-tracking", "no")
    try:
        made = redis_scenarios(redis)
        keys = {s: (name, "late" if name == "middle" else "g") for s, name in made.items()}
        (queue,) = REDIS.sources([redis.url])
        queue.poll()
        redis.do("XGROUP", "DESTROY", "gone", "g")
        sides: dict[str, dict[tuple[str, str], Any]] = {}
        costs = {}

        def cost(of: str, ask: Callable[[], object]) -> None:
            ask()
            begun, calls = cpu_s(redis.process.pid), commands(redis)
            for _ in range(POLLS):
                ask()
            costs[of] = (commands(redis) - calls - 1) / POLLS, (cpu_s(redis.process.pid) - begun) / POLLS

        polled(queue, 12)  # states need a history
        cost("tickscope", queue.poll)
        sides["tickscope"] = ours(queue)
        queue.close()
        if program:
            (port,) = free_ports(1)
            page = f"http://127.0.0.1:{port}/metrics"
            command = [program, f"-redis.addr=redis://127.0.0.1:{redis.port}", f"-web.listen-address=127.0.0.1:{port}"]
            with peer(
                [*command, f"-check-streams={','.join(f'db0={name}' for name in made.values())}"], page, directory
            ):
                cost("redis_exporter", lambda: get(page))
                sides["redis_exporter"] = metrics(get(page), "redis_stream_group_lag")
        truth = {}
        for scenario, key in keys.items():
            if key[1] == "late":
                redis.do("XGROUP", "DESTROY", key[0], "g")
                redis.do("XGROUP", "CREATE", key[0], "g", "0")
                left = redis.do("XREADGROUP", "GROUP", "late", "truth", "COUNT", 10_000, "STREAMS", key[0], ">")
                truth[scenario] = key, str(len(left[0][1]))  # type: ignore[index]
            else:
                truth[scenario] = key, unread(redis, key[0])
        table("Redis Stream", truth, sides)
        for of, (calls, took) in costs.items():
            print(f"{of}: {calls:.0f} commands a poll, {took * 1e3:.1f} ms of the server's processor time")
    finally:
        redis.end()


def commands(redis: Redis) -> int:
    stats = redis.do("INFO", "stats")
    assert isinstance(stats, bytes)
    found = re.search(rb"total_commands_processed:(\d+)", stats)
    assert found
    return int(found[1])


# --- Kafka -----------------------------------------------------------------------------------------------------------

CONSUMER = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[3], "auto.offset.reset": "earliest",
    "auto.commit.interval.ms": 500})
consumer.subscribe([sys.argv[2]])
while True:
    consumer.poll(1)
"""
PRODUCER = """
import sys, time
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": sys.argv[1], "linger.ms": 5})
while True:
    producer.produce(sys.argv[2], b"x")
    producer.poll(0.05)
"""


def kafka_scenarios(
    kafka: Kafka, started: contextlib.ExitStack
) -> tuple[tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]], dict[str, tuple[str, str]]]:
    """A producer and its consumer, which go on, and scenario -> its topic, of one partition, and the group."""
    from confluent_kafka import Producer, TopicPartition
    from confluent_kafka.admin import NewTopic

    names = ("plain", "deleted", "aborted", "reset", "idle", "stopped")
    for made in kafka.admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        made.result(60)
    producer = Producer({"bootstrap.servers": kafka.address})
    for name in ("plain", "deleted", "reset", "idle"):
        for _ in range(1000):
            producer.produce(name, b"x")
    assert producer.flush(60) == 0
    kafka.commit("g", "plain", {0: 400})
    kafka.commit("g", "deleted", {0: 400})
    kafka.admin.delete_records([TopicPartition("deleted", 0, 700)])[TopicPartition("deleted", 0)].result(20)
    kafka.commit("g", "reset", {0: 5000})
    atomic = Producer({"bootstrap.servers": kafka.address, "transactional.id": "t"})
    atomic.init_transactions(30)
    for ends in (atomic.commit_transaction, atomic.abort_transaction):
        atomic.begin_transaction()
        for _ in range(100):
            atomic.produce("aborted", b"x")
        atomic.flush(30)
        ends(30)
    kafka.commit("g", "aborted", {0: 101})

    def program(code: str, *args: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", code, kafka.address, *args])
        started.callback(process.wait)
        started.callback(process.kill)
        return process

    program(CONSUMER, "idle", "g-idle")
    busy = program(PRODUCER, "stopped")
    stopped = program(CONSUMER, "stopped", "g-stopped")
    return (busy, stopped), {
        "600 of 1,000 unread": ("plain", "g"),
        "the same, 300 unread ones deleted (retention)": ("deleted", "g"),
        "100 records of an aborted transaction, all of the others read": ("aborted", "g"),
        "committed offset above the end (topic made anew)": ("reset", "g"),
        "all read, producer idle": ("idle", "g-idle"),
        f"consumer stopped (SIGSTOP) {STOPPED_S} s ago, producer goes on": ("stopped", "g-stopped"),
    }


def readable(kafka: Kafka, topic: str, group: str) -> str:
    """How many records the group's consumer would get from here on, read as it does."""
    from confluent_kafka import Consumer, TopicPartition

    reader = Consumer({"bootstrap.servers": kafka.address, "group.id": group, "enable.auto.commit": False})
    (at,) = reader.committed([TopicPartition(topic, 0)], timeout=20)
    _, end = reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)
    reader.close()
    reader = Consumer(
        {
            "bootstrap.servers": kafka.address,
            "group.id": "truth",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    n, quiet = 0, 0
    try:
        if at.offset > end:
            return "0 (offset out of range)"
        reader.assign([TopicPartition(topic, 0, at.offset)])
        while quiet < 5:
            got = reader.consume(1000, 1)
            n, quiet = n + sum(message.error() is None for message in got), 0 if got else quiet + 1
            if got and got[-1].offset() >= end - 1:
                break
    finally:
        reader.close()
    return str(n)


def burrow_config(kafka: Kafka, port: int) -> str:
    return f"""
[logging]
level="error"
[client-profile.p]
client-id="b"
kafka-version="3.0.0"
[cluster.c]
class-name="kafka"
servers=["{kafka.address}"]
client-profile="p"
topic-refresh=5
offset-refresh=1
[consumer.c]
class-name="kafka"
cluster="c"
servers=["{kafka.address}"]
client-profile="p"
start-latest=false
[httpserver.default]
address="127.0.0.1:{port}"
[storage.default]
class-name="inmemory"
intervals={INTERVALS}
min-distance=1
"""


def of_burrow(base: str, groups: Sequence[str]) -> dict[tuple[str, str], str]:
    found = {}
    for group in groups:
        with contextlib.suppress(OSError):
            status = json.loads(get(f"{base}/v3/kafka/c/consumer/{group}/lag"))["status"]
            for one in status["partitions"]:
                found[one["topic"], group] = f"{one['current_lag']} ({one['status']})"
    return found


def on_kafka(exporter: str | None, burrow: str | None, directory: str) -> None:
    (data := Path(directory, "data")).mkdir()
    (libraries := Path(directory, "libraries")).mkdir()
    kafka = Kafka(fetched(libraries), data)
    with contextlib.ExitStack() as started:
        started.enter_context(kafka)
        (queue,) = KAFKA.sources([kafka.address])
        started.callback(queue.close)
        pages = free_ports(2)
        page, base = f"http://127.0.0.1:{pages[0]}/metrics", f"http://127.0.0.1:{pages[1]}"
        if burrow:
            Path(directory, "burrow.toml").write_text(burrow_config(kafka, pages[1]))
            started.enter_context(peer([burrow, f"-config-dir={directory}"], f"{base}/burrow/admin", directory))
        (busy, stopped), scenarios = kafka_scenarios(kafka, started)
        polled(queue, 3 * INTERVALS)
        stopped.send_signal(signal.SIGSTOP)
        polled(queue, STOPPED_S)
        busy.send_signal(signal.SIGSTOP)  # nothing changes from here on
        time.sleep(2)
        sides: dict[str, dict[tuple[str, str], Any]] = {"tickscope": ours(queue)}
        if exporter:
            command = [exporter, f"--kafka.server={kafka.address}", f"--web.listen-address=127.0.0.1:{pages[0]}"]
            with peer(command, page, directory):
                sides["kafka_exporter"] = metrics(get(page), "kafka_consumergroup_lag")
        if burrow:
            sides["Burrow"] = of_burrow(base, sorted({group for _, group in scenarios.values()}))
        table("Kafka partition", {s: (key, readable(kafka, *key)) for s, key in scenarios.items()}, sides)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.queue_peers", description=__doc__)
    for name in ("redis-exporter", "kafka-exporter", "burrow"):
        parser.add_argument(f"--{name}", default=shutil.which(name.replace("-", "_")), metavar="FILE")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        on_redis(given.redis_exporter, directory)
        on_kafka(given.kafka_exporter, given.burrow, directory)


if __name__ == "__main__":
    main()
