"""What polling Kafka costs: ``python -m tests.bench.kafka [--partitions N] [--polls N]``.

One group with a committed offset in each partition of one topic, and records behind it in all of them: the time of a
poll, the processor time of the poller and of the broker, and the poller's memory.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

from agent.queues.brokers.kafka import BROKER
from tests.bench.common import arguments, cpu_s, report
from tests.servers.kafka_server import Kafka, fetched


def pss_bytes() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def fill(kafka: Kafka, partitions: int) -> None:
    """Ten records in each partition; nine of them are not read."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import NewTopic

    kafka.admin.create_topics([NewTopic("wide", partitions, 1)])["wide"].result(60)
    producer = Producer({"bootstrap.servers": kafka.address})
    for i in range(10 * partitions):
        producer.produce("wide", b"x", partition=i % partitions)
        producer.poll(0)
    assert producer.flush(60) == 0
    kafka.commit("readers", "wide", dict.fromkeys(range(partitions), 1))


def main() -> None:
    given = arguments(__doc__, partitions=(1000, "partitions"), polls=(20, "polls"))
    before = pss_bytes()
    with tempfile.TemporaryDirectory() as name:
        (directory := Path(name, "data")).mkdir()
        (libraries := Path(name, "libraries")).mkdir()
        kafka = Kafka(fetched(libraries), directory)
        try:
            fill(kafka, given.partitions)
            (queue,) = BROKER.sources([kafka.address])
            took, ages, own, its = [], [], cpu_s(os.getpid()), cpu_s(kafka.process.pid)
            for _ in range(given.polls):
                begin = time.monotonic()
                rows = queue.poll()
                took.append(time.monotonic() - begin)
                assert [row.get("lag_messages") for row in rows] == [9] * given.partitions, rows[:3]
                ages.append(sum(row["lag_s"] == row["lag_s"] for row in rows))
                time.sleep(max(0.0, 1 - took[-1]))
            own, its = cpu_s(os.getpid()) - own, cpu_s(kafka.process.pid) - its
            queue.close()
        finally:
            kafka.end()
    each = f"{given.partitions} partitions of one group"
    report("a poll, the slowest", f"{max(took):.3f} s, the median {statistics.median(took):.3f} s", each, "<= 5 s")
    report("processor time a poll", f"{own / given.polls * 1e3:.0f} ms", each, "-")
    report("the broker's processor time a poll", f"{its / given.polls * 1e3:.0f} ms", each, "-")
    known = str(ages.index(given.partitions) + 1) if given.partitions in ages else f"{max(ages)} partitions at best"
    report("polls until the age is known everywhere", known, each, "-")
    report("memory (PSS), with the client library", f"+{(pss_bytes() - before) / 1e6:.1f} MB", each, "-")


if __name__ == "__main__":
    main()
