"""What polling a RabbitMQ node with many queues takes: ``python -m tests.bench.rabbitmq [--queues N] [--seconds S]``.

A node of its own with so many queues, each with a consumer, 200 messages a second through all of them. A poll's time,
the processor time of the node with and without polls (a second each, interleaved), the memory of the process that
polls.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

import amqp

from tests.bench.common import Figure, arguments, cpu_s, report
from tests.bench.poller import Poll, Poller
from tests.servers.rabbitmq import Rabbit


def _traffic(node: Rabbit, queues: int, ended: threading.Event) -> None:
    with node.connect() as connection:
        channel = connection.channel()
        for i in range(queues):
            channel.queue_declare(f"queue-{i}", durable=True, auto_delete=False)
            channel.basic_consume(f"queue-{i}", no_ack=True, callback=lambda _: None)
        i = 0
        while not ended.is_set():
            channel.basic_publish(amqp.Message("x" * 100), routing_key=f"queue-{i % queues}")
            i += 1
            time.sleep(0.005)


def main() -> None:
    given = arguments(__doc__, queues=(500, "queues"), seconds=(30, "polls"))
    with tempfile.TemporaryDirectory() as directory:
        node, ended = Rabbit(Path(directory), interval_ms=5000), threading.Event()
        traffic = threading.Thread(target=_traffic, args=(node, given.queues, ended))
        try:
            traffic.start()
            time.sleep(15)
            beam = node.machine()
            poller = Poller("rabbitmq", node.url)
            polled, alone, answers = list[float](), list[float](), list[Poll]()
            for _ in range(given.seconds):
                for cost in (polled, alone):
                    before, began = cpu_s(beam), time.monotonic()
                    if cost is polled:
                        answers.append(poller.poll())
                    time.sleep(max(0.0, began + 1 - time.monotonic()))
                    cost.append(cpu_s(beam) - before)
            poller.close()
        finally:
            ended.set()
            traffic.join()
            node.end()
    took, cpu, pss, rows, down = zip(*answers, strict=True)
    assert not any(down), "a poll failed"
    assert min(rows) >= given.queues
    what = f"RabbitMQ, {given.queues} queues"
    report(f"{what}: a poll, ms", Figure([1000 * s for s in took]).text(".1f"), "-", "-")
    report(f"{what}: processor time of the poller a poll, ms", Figure([1000 * s for s in cpu]).text(".1f"), "-", "-")
    report(
        f"{what}: processor time of the node in a second with a poll, ms",
        Figure([1000 * s for s in polled]).text(".0f"),
        f"{Figure([1000 * s for s in alone]).text('.0f')} without",
        "-",
    )
    report(f"{what}: memory of the poller (PSS), MB", f"{pss[-1] / 1024:.1f}", "-", "-")


if __name__ == "__main__":
    main()
