"""What polling a Redis server with many streams takes: ``python -m tests.bench.redis_streams [--streams N]``.

A redis-server of its own; each stream has a group with entries that wait and entries that are pending. A poll's time,
its commands, the processor time of the server, and the memory of the process that polls.
"""

from __future__ import annotations

import tempfile
import time

import redis

from tests.bench.common import Figure, Redis, arguments, cpu_s, report
from tests.bench.poller import Poller


def _fill(client: redis.Redis, streams: int) -> None:
    """Ten entries in each stream, of which a consumer has read four and acknowledged two."""
    for number in range(streams):
        name = f"stream-{number}"
        with client.pipeline(transaction=False) as many:
            for entry in range(10):
                many.xadd(name, {"n": str(entry)})
            many.xgroup_create(name, "group", "0")
            many.execute()
        read = client.xreadgroup("group", "one", {name: ">"}, count=4)
        client.xack(name, "group", *(entry for entry, _ in read[0][1][:2]))


def main() -> None:
    given = arguments(__doc__, streams=(1000, "streams"), polls=(30, "polls"))
    with tempfile.TemporaryDirectory() as directory:
        server = Redis(directory)
        client = redis.Redis(port=server.port)
        try:
            _fill(client, given.streams)
            poller = Poller("redis", f"redis://127.0.0.1:{server.port}?streams=stream-*")
            polls = [poller.poll()]  # it scans for the streams
            commands, took = client.info("stats")["total_commands_processed"], cpu_s(server.process.pid)
            for _ in range(given.polls):
                began = time.monotonic()
                polls.append(poller.poll())
                time.sleep(max(0.0, began + 1 - time.monotonic()))
            took = (cpu_s(server.process.pid) - took) / given.polls
            commands = client.info("stats")["total_commands_processed"] - commands
            poller.close()
        finally:
            client.close()
            server.process.kill()
            server.process.wait()
    assert not any(poll.down for poll in polls), "a poll failed"
    assert min(poll.rows for poll in polls[1:]) >= given.streams
    what = f"Redis, {given.streams} streams"
    report(f"{what}: a poll, ms", Figure([1000 * poll.took for poll in polls[1:]]).text(".1f"), "-", "-")
    cpu = Figure([1000 * poll.cpu for poll in polls[1:]]).text(".1f")
    report(f"{what}: processor time of the poller a poll, ms", cpu, "-", "-")
    report(f"{what}: processor time of the server a poll, ms", f"{1000 * took:.1f}", "-", "-")
    report(f"{what}: commands a poll", f"{commands / given.polls:.0f}", "-", "-")
    report(f"{what}: memory of the poller (PSS), MB", f"{polls[-1].pss / 1024:.1f}", "-", "-")


if __name__ == "__main__":
    main()
