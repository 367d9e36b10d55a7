"""Lists and sorted sets that are queues: of real RQ and BullMQ (PyPI), of Sidekiq as its wiki describes its data ("Job
Format", "Using Redis"), and plain ones.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.common.resp import DECLARED
from agent.errors import AgentError
from agent.queues.brokers.redis import BROKER
from agent.queues.redis_lists import ListQueues
from tests.servers.polled import poll, until_rows
from tests.servers.test_redis_rights import DOCS, failure
from tests.servers.test_redis_streams import Redis, redis

__all__ = ["redis"]

RQ = """
import sys, time
from datetime import timedelta
from redis import Redis
from rq import Queue, SimpleWorker
connection = Redis(port=int(sys.argv[1]))
queue = Queue("mails", connection=connection)
for _ in range(7):
    queue.enqueue(time.sleep, 300)
queue.enqueue_in(timedelta(hours=1), time.sleep, 1)
SimpleWorker([queue], connection=connection).work()
"""
BULLMQ = """
import asyncio, sys
from bullmq import Queue, Worker
async def main():
    options = {"connection": f"redis://127.0.0.1:{sys.argv[1]}"}
    queue = Queue("paint", options)
    for n in range(7):
        await queue.add("job", {"n": n})
    await queue.add("later", {}, {"delay": 3600000})
    async def process(job, token):
        await asyncio.sleep(300)
    worker = Worker("paint", process, options)
    await asyncio.sleep(300)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with RQ, BullMQ and all that they need."""
    place = tmp_path_factory.mktemp("libraries")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--retries=1", "--prefer-binary", "--no-compile"]
    done = subprocess.run([*command, f"--target={place}", "rq", "bullmq"], capture_output=True, text=True, check=False)
    if done.returncode and ("NewConnectionError" in done.stderr or "from versions: none" in done.stderr):
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture
def program(libraries: Path, redis: Redis, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    running = []

    def begin(code: str) -> None:
        running.append(
            subprocess.Popen(
                [sys.executable, "-c", code, str(redis.port)],
                env={**os.environ, "PYTHONPATH": str(libraries)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=tmp_path,
            )
        )

    yield begin
    for one in running:
        one.kill()
        one.wait()


def settled(queue: Any, lag: int) -> Any:
    """The row of the only queue, once so many jobs wait and one runs."""
    counts = lambda row: (row["lag_messages"], row["pending"])  # noqa: E731
    known = lambda row: counts(row) == (lag, 1) and not isnan(row["oldest_pending_s"])  # noqa: E731
    return until_rows(queue, lambda rows: known(rows[0]))[0]


@pytest.mark.parametrize(
    ("code", "query", "name", "consumers", "delayed"),
    [
        (RQ, "?rq=mails", b"rq:queue:mails", 1, 1),
        (RQ, "?rq=*", b"rq:queue:mails", 1, 1),
        (BULLMQ, "?bullmq=paint", b"bull:paint", -(2**63), 1),
        (BULLMQ, "?bullmq=bull:paint", b"bull:paint", -(2**63), 1),
    ],
)
def test_jobs_that_wait_and_run_and_their_ages(
    redis: Redis, program: Callable[[str], None], code: str, query: str, name: bytes, consumers: int, delayed: int
) -> None:
    began = time.time()
    program(code)
    (queue,) = BROKER.sources([redis.url + query])
    row = settled(queue, 6)
    elapsed = time.time() - began
    assert (row["destination"], row["exact"], row["consumers"], row["status"]) == (name, 1, consumers, b"ok")
    assert row["delayed"] == delayed
    assert 0 <= row["oldest_pending_s"] <= row["oldest_undelivered_s"] <= elapsed
    later = settled(queue, 6)
    assert later["oldest_undelivered_s"] >= row["oldest_undelivered_s"]


def documented() -> dict[str, list[str]]:
    """The rules that each option needs, by docs/queues-redis.md."""
    rows = re.findall(r"^\| `(\w+)=\S*.*$", DOCS.read_text(), re.MULTILINE)
    lines = {name: next(li for li in DOCS.read_text().splitlines() if li.startswith(f"| `{name}=")) for name in rows}
    return {name: re.findall(r"\+[a-z]+", line) for name, line in lines.items()}


@pytest.mark.parametrize("option", DECLARED)
def test_the_rights_of_the_docs_are_enough_and_each_is_needed(redis: Redis, option: str) -> None:
    redis.do("RPUSH", "rq:queue:q", "job")
    redis.do("ZADD", "rq:wip:q", 1, "job")
    redis.do("SADD", "rq:queues", "rq:queue:q")
    redis.do("RPUSH", "bull:q:wait", "1")
    redis.do("RPUSH", "bull:q:active", "1")
    redis.do("RPUSH", "queue:q", "{}")
    redis.do("SADD", "queues", "q")
    redis.do("SADD", "processes", "p")
    rules = documented()[option]
    names = "*" if option in ("rq", "sidekiq") else "q"
    for without in ("", *rules):
        given = [rule for rule in ("+client|setname", "+info", "+time", *rules) if rule != without]
        redis.do("ACL", "SETUSER", "mon", "reset", "on", ">x", "~*", *given)
        (queue,) = BROKER.sources([f"redis://mon:x@127.0.0.1:{redis.port}/0?{option}={names}"])
        server = [row["reason"].decode() for row in poll(queue) if row["failure"] >= 0 and not row["destination"]]
        queue.close()
        assert server == ([f"refused by the ACL; ACL SETUSER mon {without}"] if without else [])


@pytest.mark.parametrize("unit", [1, 1000])
def test_sidekiq(redis: Redis, unit: int) -> None:
    """unit: of the times in its jobs, ms since Sidekiq 8."""

    def at(seconds_ago: float) -> float:
        return round((time.time() - seconds_ago) * unit)

    def job(n: int, seconds_ago: float) -> str:
        return json.dumps({"class": "Mail", "args": [n], "jid": f"{n:024x}", "enqueued_at": at(seconds_ago)})

    redis.do("SADD", "queues", "default", "low")
    for n in range(5):
        redis.do("LPUSH", "queue:default", job(n, 100 - n))
    redis.do("SADD", "processes", "host:1:a", "host:2:b")
    redis.do("HSET", "host:1:a", "info", json.dumps({"queues": ["default", "low"], "concurrency": 5}), "busy", 2)
    redis.do("HSET", "host:2:b", "info", json.dumps({"queues": ["low"]}), "busy", 0)
    for thread, name, seconds_ago in (("t1", "default", 30), ("t2", "default", 50), ("t3", "low", 70)):
        work = {"queue": name, "payload": job(9, 99), "run_at": at(seconds_ago) / (1 if unit == 1 else 1000)}
        redis.do("HSET", "host:1:a:work", thread, json.dumps(work))
    redis.do("ZADD", "schedule", time.time() - 20, "due", time.time() + 3600, "later")
    (queue,) = BROKER.sources([redis.url + "?sidekiq=*"])
    rows = {row["destination"]: row for row in poll(queue)}
    assert sorted(rows) == [b"queue:default", b"queue:low", b"retry", b"schedule"]
    default, low = rows[b"queue:default"], rows[b"queue:low"]
    assert (default["lag_messages"], default["pending"], default["consumers"]) == (5, 2, 1)
    assert 99 <= default["oldest_undelivered_s"] < 130
    assert 49 <= default["oldest_pending_s"] < 80
    assert (low["lag_messages"], low["pending"], low["consumers"]) == (0, 1, 2)
    assert (rows[b"schedule"]["lag_messages"], rows[b"retry"]["lag_messages"]) == (1, 0)
    assert 19 <= rows[b"schedule"]["oldest_undelivered_s"] < 50
    redis.do("SREM", "queues", "low")
    assert {row["destination"]: row["status"] for row in poll(queue)}[b"queue:low"] == b"gone"
    redis.do("SADD", "queues", "low")
    assert {row["destination"]: row["status"] for row in poll(queue)}[b"queue:low"] == b"ok"


@pytest.mark.parametrize(
    ("query", "name", "key", "scores"),
    [
        ("?bullmq=paint", b"bull:paint", "bull:paint:delayed", lambda at_s: round(at_s * 1000) * 4096),
        ("?rq=paint", b"rq:queue:paint", "rq:scheduled:paint", int),
        ("?sidekiq=paint", b"schedule", "schedule", float),
        ("?sidekiq=paint", b"retry", "retry", float),
    ],
)
def test_delayed_jobs_are_no_lag_until_they_are_due(
    redis: Redis, query: str, name: bytes, key: str, scores: Callable[[float], float]
) -> None:
    for seconds, job in ((-20, "due"), (3600, "later"), (7200, "latest")):
        redis.do("ZADD", key, scores(time.time() + seconds), job)
    (row,) = [one for one in poll(BROKER.sources([redis.url + query])[0]) if one["destination"] == name]
    assert (row["lag_messages"], row["delayed"]) == (1, 2)
    if "bullmq" not in query:  # of these the set time is known, and the age begins with it
        assert 20 <= row["oldest_undelivered_s"] < 50


def test_plain_lists_and_sorted_sets_have_a_length_and_no_age(redis: Redis) -> None:
    redis.do("RPUSH", "mails", *range(13))
    redis.do("ZADD", "urgent", *[word for n in range(11) for word in (n, f"m{n}")])
    redis.do("SET", "text", "x")
    redis.do("XGROUP", "CREATE", "stream", "g", "$", "MKSTREAM")
    (queue,) = BROKER.sources([redis.url + "?lists=mails,text,none&sorted_sets=urgent"])
    rows = {row["destination"]: row for row in poll(queue)}
    assert sorted(rows) == [b"mails", b"none", b"text", b"urgent"]  # streams are not searched for
    assert [rows[name]["lag_messages"] for name in (b"mails", b"none", b"urgent")] == [13, 0, 11]
    assert isnan(rows[b"mails"]["oldest_undelivered_s"])
    assert (rows[b"text"]["status"], rows[b"text"]["lag_messages"]) == (b"unknown", -(2**63))
    assert b"WRONGTYPE" in rows[b"text"]["reason"]
    redis.end()
    down = poll(queue)
    assert set(down["status"].tolist()) == {b"down"}
    assert sorted(down["destination"].tolist()) == sorted(rows)


def test_rights_that_lists_need_are_named(redis: Redis) -> None:
    redis.do("RPUSH", "rq:queue:mails", "x")
    redis.do("ACL", "SETUSER", "mon", "on", ">x", "~*", "+info", "+time")
    (queue,) = BROKER.sources([f"redis://mon:x@127.0.0.1:{redis.port}/0?rq=mails"])
    row, server = poll(queue)
    assert (row["destination"], row["status"], failure(row)) == (b"rq:queue:mails", b"unknown", "permission")
    assert b"ACL SETUSER mon +lindex +llen +scard +zcard +zcount +zrange" in server["reason"]
    redis.do("ACL", "SETUSER", "mon", "+llen", "+lindex", "+zcard", "+zrange", "+scard", "+hget")
    (queue,) = BROKER.sources([f"redis://mon:x@127.0.0.1:{redis.port}/0?rq=mails"])
    row, server = poll(queue)
    assert (row["lag_messages"], row["exact"]) == (1, 0)
    assert row["inexact_reason"] == b"lower bound: due jobs are not known"
    assert b"ACL SETUSER mon +zcount" in server["reason"]
    redis.do("ACL", "SETUSER", "mon", "+zcount")
    (queue,) = BROKER.sources([f"redis://mon:x@127.0.0.1:{redis.port}/0?rq=mails"])
    (row,) = poll(queue)
    assert (row["lag_messages"], row["status"]) == (1, b"ok")


ODD = '{"enqueued_at": %s, "delay": %s, "queues": 7, "queue": "default", "run_at": %s}'


@pytest.mark.parametrize(
    "job",
    [
        *("", "x", "[]", "{", '{"enqueued_at": "now", "jid": 7}', '{"enqueued_at": 1e300}', "[" * 9999),
        *(ODD % (given, given, given) for given in ("1" * 400, '"x"', "[]", "true", "-1")),
    ],
)
def test_jobs_that_cannot_be_read_have_no_age(redis: Redis, job: str) -> None:
    redis.do("LPUSH", "queue:default", job)
    redis.do("SADD", "processes", "p")
    redis.do("HSET", "p:work", "t", job)
    redis.do("HSET", "p", "info", job)
    redis.do("RPUSH", "rq:queue:mails", job)
    redis.do("LPUSH", "bull:paint:wait", "1")
    redis.do("HSET", "bull:paint:1", "timestamp", "7" + job[:3], "opts", job)
    redis.do("LPUSH", "bull:paint:active", "1")
    redis.do("HSET", "bull:paint:1", "processedOn", job)
    rows = poll(BROKER.sources([redis.url + "?sidekiq=default&rq=mails&bullmq=paint"])[0])
    waiting = rows[np.isin(rows["destination"], [b"queue:default", b"rq:queue:mails", b"bull:paint"])]
    assert waiting["lag_messages"].tolist() == [1, 1, 1]
    assert np.isnan(waiting["oldest_undelivered_s"]).all()


def test_lists_of_a_cluster_are_refused() -> None:
    with pytest.raises(AgentError) as refused:
        BROKER.sources(["redis+cluster://a?rq=mails"])
    assert "only streams of a cluster" in str(refused.value.why)


def test_what_several_queues_need_is_asked_once_and_jobs_that_begin_alike_are_two() -> None:
    jobs = [b'{"retry":true,"queue":"default","args":[],"class":"HardWorkerOfTheShop","jid":"%d"}' % n for n in (1, 2)]
    asked: list[Any] = []

    def ask(commands: Any) -> list[Any]:
        asked.extend(commands)
        replies = {"SMEMBERS": [b"h:1:a"], "ZRANGE": [jobs[0], b"1700000000"], "HVALS": [], "HGET": b"{}"}
        return [replies.get(command[0], None if command[0] == "LINDEX" else 0) for command in commands]

    queues = ListQueues([("sidekiq", name) for name in ("a", "b", "c")])
    positions = []
    for _ in range(2):
        asked.clear()
        rows = queues.rows(ask, 1.7e9)
        positions += [row["position"] for row in rows if row["destination"] == b"retry"]
        assert len(asked) == len(set(asked))
        jobs.reverse()
    assert positions[0] != positions[1]
