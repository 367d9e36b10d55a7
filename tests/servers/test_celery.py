"""Queues of a real Celery application on a real redis-server, compared with what the application did itself."""

from __future__ import annotations

import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from io import StringIO
from math import inf, isnan
from pathlib import Path
from typing import Any

import kombu
import numpy as np
import pytest

from agent.common.resp import RedisUrl, RespClient
from agent.errors import AgentError
from agent.queues import redis_places
from agent.queues.brokers import celery
from agent.queues.brokers.celery import BROKER, CeleryServer
from agent.queues.packing import TABLE
from agent.queues.queue import Queue
from tests.patience import until
from tests.servers.celery_pieces import Worker, application
from tests.servers.polled import poll
from tests.servers.test_redis_places import DISKLESS, begin_sentinel, cli
from tests.servers.test_redis_streams import Redis

LONG_S = 600
AGE = re.compile(rb"age: ([\d.]+) (?:to ([\d.]+) s|s or more)")
#: The worker looks for messages to deliver again at each second.
OPTIONS = {"visibility_timeout": 5, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    with Redis(tmp_path) as server:
        yield server


@pytest.fixture
def worker(redis: Redis, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Starts workers; all end with the test."""
    with ExitStack() as ends:

        def begin(**more: Any) -> Worker:
            one = Worker(redis.url, tmp_path, **more)
            ends.callback(one.end)
            return one

        yield begin


def watch(url: str, options: str = "") -> Queue:
    (queue,) = BROKER.sources([url + options])
    return queue


def row(queue: Queue, name: str = "celery") -> Any:
    """The row of a queue, which is the only one of that name."""
    (found,) = [one for one in poll(queue) if one["destination"] == name.encode()]
    return found


def state(found: Any) -> tuple[int, int, int]:
    """Waiting, unacknowledged, delayed."""
    return int(found["lag_messages"]), int(found["pending"]), int(found["delayed"])


def unacked(redis: Redis, n: int) -> None:
    """Waits until that many messages are unacknowledged, in all queues."""
    until(lambda: redis.do("ZCARD", "unacked_index") == n)


def boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def age(found: Any) -> tuple[float, float]:
    """The least and the most of the oldest message's age, whether it is a number with an error or a text."""
    lag_s, error_s = float(found["lag_s"]), float(found["lag_error_s"])
    assert isnan(lag_s) == isnan(error_s)
    if not isnan(lag_s):
        assert (found["inexact_reason"], found["oldest_undelivered_s"]) == (b"", lag_s)
        assert TABLE.by_name["lag_basis"].names[found["lag_basis"]] == "history"
        return lag_s - error_s, lag_s + error_s
    least, most = AGE.fullmatch(found["inexact_reason"]).groups()  # type: ignore[union-attr]
    oldest_s = float(found["oldest_undelivered_s"])
    assert abs(oldest_s - float(least)) < 0.051 or (isnan(oldest_s) and float(least) == 0)
    return float(least) - 0.05, float(most) + 0.05 if most else inf


def test_growing_and_draining_over_priorities_and_queues(redis: Redis, worker: Callable[..., Worker]) -> None:
    app, queue = application(redis.url), watch(redis.url)
    (alone,) = poll(queue)
    assert (alone["destination"], alone["status"], alone["server_role"]) == (b"", b"ok", b"primary")
    sent = []
    before = boot_s()
    for priority, n in ((0, 5), (3, 3), (9, 2)):
        sent += [app.send_task("early", (0,), priority=priority).id for _ in range(n)]
    app.send_task("early", (0,), queue="mail", priority=3)
    first, mail = sorted(poll(queue), key=lambda one: bytes(one["destination"]))
    assert (state(first), state(mail)) == ((10, 0, 0), (1, 0, 0))
    assert (first["system"], first["exact"], first["status"]) == (b"celery", 1, b"ok")
    assert (first["priorities"], mail["priorities"]) == (b"0: 5, 3: 3, 9: 2", b"3: 1")
    assert np.isnan([first["in_per_s"], first["out_per_s"], first["oldest_pending_s"], first["redelivery_s"]]).all()
    sent += [app.send_task("early", (0,), priority=6).id for _ in range(7)]
    second = row(queue)
    after = boot_s()
    seconds = (second["t_ns"] - first["t_ns"]) / 1e9
    assert state(second) == (17, 0, 0)
    assert second["in_per_s"] * seconds == pytest.approx(7, rel=0.2)
    assert second["out_per_s"] == 0
    # It had no poll that found the queue empty, since the queue was not known.
    assert 0 < second["oldest_undelivered_s"] <= after - before
    assert second["inexact_reason"].endswith(b"s or more")
    assert isnan(second["lag_s"])
    assert second["priorities"] == b"0: 5, 3: 3, 6: 7, 9: 2"
    drained = worker()
    until(lambda: len(drained.did("end")) == len(sent))
    unacked(redis, 0)
    last = row(queue)
    assert state(last) == (0, 0, 0)
    assert (last["lag_s"], last["lag_error_s"], last["inexact_reason"], last["exact"]) == (0, 0, b"", 1)
    assert last["priorities"] == b""
    assert isnan(last["oldest_undelivered_s"])
    assert sorted(drained.did("begin")) == sorted(sent)
    assert state(row(queue, "mail")) == (1, 0, 0)
    drained.end()
    app.send_task("early", (0,))
    begun = boot_s()
    least, most = age(row(queue))
    assert least <= boot_s() - begun
    assert boot_s() - begun <= most + 0.05
    assert most < inf
    time.sleep(2)  # no poll
    app.send_task("early", (0,))
    before = boot_s()
    waits = row(queue)  # the bounds are as far apart as before
    assert not isnan(waits["lag_s"])
    assert age(waits)[0] <= boot_s() - begun
    assert before - begun <= age(waits)[1]
    queue.close()


@pytest.mark.parametrize(("task", "waiting"), [("late", 3), ("early", 2)])
def test_a_worker_that_is_stopped_and_killed(
    redis: Redis, worker: Callable[..., Worker], task: str, waiting: int
) -> None:
    """One message is unacknowledged: with late acknowledgement the one that is executed, else the next one."""
    app, queue = application(redis.url), watch(redis.url, "?visibility_timeout=5")
    before = boot_s()
    sent = [app.send_task(task, (LONG_S,)).id for _ in range(4)]
    first = worker(options=OPTIONS)
    until(lambda: first.did("begin"))
    unacked(redis, 1)
    until(lambda: redis.do("LLEN", "celery") == waiting)
    row(queue)
    first.signal(signal.SIGSTOP)
    app.send_task(task, (LONG_S,))
    stopped = row(queue)
    assert state(stopped) == (waiting + 1, 1, 0)
    assert (stopped["out_per_s"], stopped["redelivered"]) == (0, 0)
    assert stopped["in_per_s"] > 0
    assert 0 <= stopped["oldest_pending_s"] <= boot_s() - before
    assert stopped["redelivery_s"] + stopped["oldest_pending_s"] == pytest.approx(5, abs=0.01)
    first.end()
    killed = until(lambda: (now := row(queue))["redelivery_s"] < 0 and now)  # nobody delivers it again
    assert state(killed) == (waiting + 1, 1, 0)
    assert killed["oldest_pending_s"] > 5
    again = worker(options=OPTIONS)
    (begun,) = until(lambda: again.did("begin"))
    left = waiting + (task == "late")
    revived = until(lambda: (now := row(queue))["redelivery_s"] > 0 and now["lag_messages"] == left and now)
    assert revived["pending"] == 1
    if task == "late":  # what it executes, which may be another one
        assert revived["redelivered"] == (begun in first.did("begin"))
    assert begun in sent
    queue.close()


def test_tasks_with_a_set_time_and_retries_are_delayed(redis: Redis, worker: Callable[..., Worker]) -> None:
    app, queue = application(redis.url), watch(redis.url, "?visibility_timeout=3600")
    its = worker()
    app.send_task("late", (LONG_S,), countdown=LONG_S)
    unacked(redis, 1)
    assert state(row(queue)) == (0, 0, 1)
    failed = app.send_task("fails").id
    until(lambda: its.did("begin") == [failed])
    unacked(redis, 2)
    retried = row(queue)
    assert state(retried) == (0, 0, 2)
    assert isnan(retried["oldest_pending_s"])
    assert isnan(retried["in_per_s"])
    assert 3590 < retried["redelivery_s"] <= 3600
    app.send_task("late", (LONG_S,))
    unacked(redis, 3)
    app.send_task("early", (0,))  # waits, since the worker takes no more than one
    assert state(row(queue)) == (1, 1, 2)
    queue.close()


def test_each_queue_has_its_own_unacknowledged_messages(redis: Redis, worker: Callable[..., Worker]) -> None:
    """Queues of exchanges: one of its own, one by a pattern. Known by itself, and by names."""
    app, topics = application(redis.url), kombu.Exchange("topics", "topic")
    bound = [kombu.Queue(f"topic-{key}", topics, key) for key in ("*.eu.#", "orders.us")]
    app.conf.task_queues = [kombu.Queue("celery"), kombu.Queue("mail"), *bound]
    worker(processes=3, queues="celery,mail,topic-*.eu.#,topic-orders.us")
    app.send_task("late", (LONG_S,))
    app.send_task("late", (LONG_S,), queue="mail")
    app.send_task("late", (LONG_S,), queue=bound[0], routing_key="orders.eu.fr.paris")
    app.send_task("late", (LONG_S,), queue=bound[1])
    until(lambda: redis.do("LLEN", "topic-orders.us") == 1)
    unacked(redis, 3)
    for options in ("", "?queues=celery,mail,topic-*.eu.%23,topic-orders.us"):
        queues = watch(redis.url, options)
        poll(queues)
        found = {one["destination"].decode(): state(one) for one in poll(queues)}
        assert found == {
            "celery": (0, 1, 0),
            "mail": (0, 1, 0),
            "topic-*.eu.#": (0, 1, 0),
            "topic-orders.us": (1, 0, 0),
        }
        queues.close()


def test_workers_and_the_names_of_tasks(redis: Redis, worker: Callable[..., Worker]) -> None:
    """The application's own keys stay as they are, and no other is left."""
    app, queue = application(redis.url), watch(redis.url, "?workers=true&visibility_timeout=3600")
    app.send_task("early", (0,))
    no_worker = row(queue)
    assert (no_worker["workers"], no_worker["consumers"]) == (b"", 0)
    mails = worker(queues="mail")
    for name, n in (("late", 3), ("early", 5), ("late", 2)):
        for _ in range(n):
            app.send_task(name, (LONG_S,))
    for _ in range(23):
        app.send_task("early", ("x" * 100_000,), queue="large")
    before = set(redis.do("KEYS", "*"))
    until(lambda: row(queue)["tasks"] == b"early 6, late 4")  # of the ten that are next
    assert (row(queue, "large")["lag_messages"], row(queue, "large")["tasks"]) == (23, b"")
    both = worker(queues="celery,mail")
    app.send_task("late", (LONG_S,), queue="mail")
    until(lambda: row(queue, "celery")["consumers"] == 1)
    until(lambda: row(queue, "mail")["consumers"] == 2)
    its = {name: row(queue, name)["workers"].decode() for name in ("celery", "mail", "large")}
    names = {one: f"{one.name} {one.process.pid}" for one in (mails, both)}
    assert its == {"celery": names[both], "mail": f"{names[mails]}, {names[both]}", "large": ""}
    both.end()
    until(lambda: row(queue, "celery")["consumers"] == 0)
    queue.close()
    left = {key for key in set(redis.do("KEYS", "*")) - before if b"pidbox" in key}
    assert {key for key in left if b"tickscope" in key} == set()
    assert watch(redis.url, "?tasks=false").poll()[0]["tasks"] == b""


@pytest.mark.parametrize("beside", [0, 2, 3])
def test_a_worker_that_holds_all_that_it_may(redis: Redis, worker: Callable[..., Worker], beside: int) -> None:
    """beside: messages of another of its queues."""
    app, queue = application(redis.url), watch(redis.url, "?workers=true")
    its = worker(processes=3, queues="celery,mail")
    for _ in range(beside):
        app.send_task("late", (LONG_S,), queue="mail")
    unacked(redis, beside)
    for _ in range(11 - beside):
        app.send_task("late", (LONG_S,))
    unacked(redis, 3)
    stalled = until(lambda: (now := row(queue))["status"] == b"stalled" and now)
    assert stalled["reason"].endswith(b"8 undelivered; prefetch exhausted: 3 of 3")
    assert stalled["workers"] == f"{its.name} {its.process.pid}".encode()
    queue.close()


def test_workers_of_different_queues_that_hold_all_that_they_may(redis: Redis, worker: Callable[..., Worker]) -> None:
    """One reads only `celery`, the other `mail`, too: together they hold five, of both queues."""
    app, queue = application(redis.url), watch(redis.url, "?workers=true")
    worker(processes=3, queues="celery,mail")
    for _ in range(2):
        app.send_task("late", (LONG_S,), queue="mail")
    unacked(redis, 2)
    worker(processes=2, queues="celery")
    for _ in range(10):
        app.send_task("late", (LONG_S,))
    unacked(redis, 5)
    stalled = until(lambda: (now := row(queue))["status"] == b"stalled" and now)
    assert stalled["reason"].endswith(b"7 undelivered; prefetch exhausted: 5 of 5")
    queue.close()


def test_a_worker_that_is_slower_than_the_arrivals_and_then_a_producer_that_is_idle(
    redis: Redis, worker: Callable[..., Worker]
) -> None:
    """Compared at each poll with what was sent and what the worker says that it began."""
    app, queue = application(redis.url), watch(redis.url, "?visibility_timeout=3600")
    its = worker()
    sent, states = 0, set[bytes]()
    end = time.monotonic() + 30
    while b"lagging" not in states and time.monotonic() < end:
        for _ in range(3):
            app.send_task("early", (0.7,))
        sent += 3
        most = sent - len(its.did("begin"))
        found = row(queue)
        least = sent - len(its.did("begin"))
        # Waiting, or held by the worker, which may hold one that it just acknowledged or has not noted yet.
        assert least - 1 <= found["lag_messages"] + found["pending"] <= most
        states.add(bytes(found["status"]))
        time.sleep(0.5)
    assert found["status"] == b"lagging"
    assert states == {b"ok", b"lagging"}
    assert found["reason"].startswith(b"lag grew from ")
    redis.do("DEL", "celery")
    until(lambda: len(its.did("end")) == len(its.did("begin")) and state(row(queue)) == (0, 0, 0))
    end = time.monotonic() + 12  # longer than the window of the status
    while time.monotonic() < end:
        idle = row(queue)
        assert (idle["status"], idle["reason"], state(idle)) == (b"ok", b"", (0, 0, 0))
        assert (idle["lag_s"], idle["lag_error_s"]) == (0, 0)
        assert isnan(idle["oldest_undelivered_s"])
        time.sleep(1)
    queue.close()


@dataclass
class Truth:
    """The queues of a walk: messages by priority with the time since which they wait, s of CLOCK_BOOTTIME; those that
    were taken.
    """

    ready: dict[str, list[tuple[int, float]]]
    taken: list[tuple[str, Any]]
    arrived: Counter[str]
    gone: Counter[str]


def step(rng: random.Random, channel: Any, producer: kombu.Producer, queues: list[kombu.Queue], truth: Truth) -> None:
    """One message is sent, taken, acknowledged, rejected, or put back."""
    queue, what = rng.choice(queues), rng.choice(("send", "send", "take", "acknowledge", "reject", "put back"))
    if what == "send":
        priority = rng.choice((0, 3, 6, 9))
        producer.publish({}, exchange=queue.exchange, routing_key=queue.routing_key, priority=priority)
        truth.ready[queue.name].append((priority, boot_s()))
        truth.arrived[queue.name] += 1
    elif what == "take" and truth.ready[queue.name]:
        truth.taken.append((queue.name, channel.basic_get(queue.name)))
        truth.ready[queue.name].remove(min(truth.ready[queue.name]))
        truth.arrived[queue.name] = -1000  # not known any more
    elif truth.taken and what in ("acknowledge", "reject", "put back"):
        name, message = truth.taken.pop(rng.randrange(len(truth.taken)))
        if what == "acknowledge":
            message.ack()
        else:
            message.reject(requeue=what == "put back")
        truth.gone[name] += 1
        if what == "put back":
            truth.ready[name].append((message.properties["priority"], boot_s()))
            truth.arrived[name] = -1000


@pytest.mark.parametrize("seed", range(4))
def test_a_random_walk_is_followed_poll_by_poll(redis: Redis, seed: int) -> None:
    rng, watched, known = random.Random(seed), watch(redis.url), 0
    direct, topic = kombu.Exchange("mail", "direct"), kombu.Exchange("topics", "topic")
    queues = [kombu.Queue("mail", direct, "mail"), kombu.Queue("eu", topic, "*.eu"), kombu.Queue("us", topic, "us.#")]
    with kombu.Connection(redis.url) as connection:
        channel = connection.channel()
        for queue in queues:
            queue(channel).declare()
        queues[1].routing_key = "orders.eu"
        truth = Truth({queue.name: [] for queue in queues}, [], Counter(), Counter())
        for _ in range(150):
            step(rng, channel, kombu.Producer(channel), queues, truth)
            before = boot_s()
            rows = {one["destination"].decode(): one for one in poll(watched)}
            after = boot_s()
            assert rows.keys() == truth.ready.keys()
            for name, found in rows.items():
                waiting, taken = truth.ready[name], sum(its == name for its, _ in truth.taken)
                assert state(found) == (len(waiting), taken, 0)
                if waiting:
                    since = min(at for _, at in waiting)
                    least, most = age(found)
                    assert least - 0.001 <= after - since
                    assert before - since <= most + 0.001
                if not isnan(found["in_per_s"]):
                    known += 1
                    assert [found["in_per_s"] > 0, found["out_per_s"] > 0] == [truth.arrived[name], truth.gone[name]]
            truth.arrived, truth.gone = Counter(), Counter()
        channel.qos.restore_at_shutdown = False
    assert known > 50
    watched.close()


def take(connection: kombu.Connection, n: int, name: str = "celery") -> Any:
    """A consumer that has not acknowledged so many messages."""
    channel = connection.channel()
    for _ in range(n):
        assert channel.basic_get(name) is not None
    return channel


def test_more_unacknowledged_messages_than_are_read_are_counted_as_such(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 300
    monkeypatch.setattr(celery, "MAX_UNACKED", limit)
    monkeypatch.setattr(celery, "READ_UNACKED", 200)
    monkeypatch.setattr(celery, "READ_BYTES", 50_000)
    queue, most = watch(redis.url), limit + 17
    with kombu.Connection(redis.url) as connection, connection.SimpleQueue("celery") as simple:
        for _ in range(most):
            simple.put({}, headers={"id": "x"})
        taken = take(connection, most)
        read = 0
        while read < limit:
            found = row(queue)
            assert read < found["pending"] <= min(limit, read + 200)
            read = int(found["pending"])
            assert found["inexact_reason"] == f"pending: {most - read} of {most} unacknowledged not read".encode()
        taken.qos.restore_unacked_once(stderr=StringIO())  # as an orderly end does
        assert state(row(queue)) == (most, 0, 0)
        again = take(connection, 3)
        found = row(queue)
        assert (found["pending"], found["redelivered"]) == (3, 3)
        again.qos.restore_unacked_once(stderr=StringIO())


@pytest.mark.parametrize(("sizes", "known"), [([100_000], False), ([*[10] * 300, 9 << 20], False), ([40_000], True)])
def test_large_messages_are_counted_and_not_read(redis: Redis, sizes: list[int], known: bool) -> None:
    """The second: most are small, and the next one is larger than an answer may be."""
    redis.do("SADD", "_kombu.binding.celery", "celery\x06\x16\x06\x16celery")
    client = RespClient(RedisUrl.parse(redis.url), timeout_s=20)
    client.pipeline([("RPUSH", "celery", "x" * size) for size in sizes])
    client.close()
    queue = watch(redis.url)
    for ages_known in (False, known):  # the first poll has just seen it
        found = row(queue)
        assert (found["lag_messages"], found["status"]) == (len(sizes), b"ok")
        assert isnan(found["oldest_undelivered_s"]) != ages_known
        assert (b"age not known" in found["inexact_reason"]) != known
    queue.close()


def reasons(queue: Queue) -> bytes:
    """Of the rows without a destination."""
    return b"; ".join(one["reason"] for one in poll(queue) if not one["destination"])


def test_what_hinders_that_messages_are_delivered_again(redis: Redis, worker: Callable[..., Worker]) -> None:
    app, queue = application(redis.url), watch(redis.url, "?queues=celery,mial&visibility_timeout=60")
    worker()
    app.send_task("early", (0,), countdown=59)
    unacked(redis, 1)
    assert state(row(queue)) == (0, 0, 1)
    assert reasons(queue) == b""
    assert row(queue, "mial")["reason"] == b"no message and no binding seen: is the name right?"
    assert row(queue)["reason"] == b""
    app.send_task("early", (0,), countdown=LONG_S)
    unacked(redis, 2)
    assert b"celery: 1 delayed messages are due for redelivery before" in reasons(queue)
    redis.do("SET", "unacked_mutex", "a worker that was killed", "EX", LONG_S)
    assert b"unacked_mutex" not in reasons(queue)
    assert b"unacked_mutex is held for " in reasons(queue)
    redis.do("PERSIST", "unacked_mutex")
    assert b"unacked_mutex is held and has no expiry" in reasons(queue)
    redis.do("DEL", "unacked_mutex")
    redis.do("HSET", "unacked", "tag", "[]")
    assert b"no time of delivery" not in reasons(queue)
    assert b"1 unacknowledged messages have no time of delivery" in reasons(queue)
    assert state(row(queue)) == (0, 0, 2)
    application(redis.url, sep="|").send_task("early", (0,), queue="other")
    other = watch(redis.url)
    assert b"bindings of exchange other cannot be read" in reasons(other)
    queue.close()
    other.close()


def test_the_least_rights_suffice_and_what_is_refused_is_not_known(redis: Redis, worker: Callable[..., Worker]) -> None:
    """The rights are those of docs/queues-celery.md."""
    text = (Path(__file__).parents[2] / "docs" / "queues-celery.md").read_text()
    rights, to_ask = [line.strip() for line in text.splitlines() if "ACL SETUSER tickscope-celery " in line]
    redis.do(*rights.replace("PASSWORD", "secret").split())
    app = application(redis.url)
    its = worker()
    app.send_task("late", (LONG_S,))
    unacked(redis, 1)
    app.send_task("late", (LONG_S,))
    url = redis.url.replace("redis://", "redis://tickscope-celery:secret@") + "?visibility_timeout=3600"
    queue = watch(url)
    row(queue)
    found = row(queue)
    assert state(found) == (1, 1, 0)
    assert not np.isnan([found["oldest_undelivered_s"], found["oldest_pending_s"], found["redelivery_s"]]).any()
    assert found["memory_bytes"] > 0
    assert found["tasks"] == b"late 1"
    asking = watch(url + "&workers=true")
    assert b"workers are not known: NOPERM" in reasons(asking)
    asking.close()
    redis.do(*to_ask.split())
    asking = watch(url + "&workers=true")
    asked = until(lambda: (now := row(asking))["consumers"] == 1 and now)
    assert asked["workers"] == f"{its.name} {its.process.pid}".encode()
    asking.close()
    for refused, columns, words in (
        ("-memory|usage", ["oldest_undelivered_s"], b"age not known"),
        ("-zrange", ["oldest_undelivered_s", "oldest_pending_s", "redelivery_s"], b"NOPERM"),
    ):
        redis.do("ACL", "SETUSER", "tickscope-celery", refused)
        found = row(queue)
        assert np.isnan([found[name] for name in columns]).all()
        assert words in found["inexact_reason"]
        assert (found["lag_messages"], found["status"]) == (1, b"ok")
    redis.do("ACL", "SETUSER", "tickscope-celery", "-llen")
    found = row(queue)
    assert found["lag_messages"] < 0
    assert b"NOPERM" in found["reason"]
    redis.do("ACL", "SETUSER", "tickscope-celery", "-scan")
    (down,) = poll(watch(url))
    assert down["status"] == b"unknown"
    assert b"?queues=" in down["reason"]
    queue.close()


def test_another_database_and_a_prefix(redis: Redis) -> None:
    app = application(redis.url.replace("/0", "/3"), global_keyprefix="app*1:")
    app.send_task("early", (0,))
    assert state(row(watch(redis.url.replace("/0", "/3"), "?prefix=app*1:"))) == (1, 0, 0)
    found = row(watch(redis.url.replace("/0", "/3"), "?prefix=app*1:&queues=celery"))
    assert state(found) == (1, 0, 0)
    assert found["cluster"] == f"127.0.0.1:{redis.port}/3".encode()
    for url in (redis.url, redis.url.replace("/0", "/3")):
        (nothing,) = poll(watch(url))
        assert (nothing["destination"], nothing["status"]) == (b"", b"ok")


def test_an_application_that_goes_on_with_its_second_broker(redis: Redis, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Redis(tmp_path / "other")
    both, its = f"{redis.url};{other.url}", [redis, other]
    with ExitStack() as ends:
        ends.enter_context(other)
        first = Worker(both, tmp_path)
        ends.callback(first.end)
        queues = BROKER.sources([one.url for one in its])
        application(redis.url).send_task("late", (LONG_S,))
        unacked(redis, 1)
        assert [state(row(queues[0])), len(poll(queues[1]))] == [(0, 1, 0), 1]
        redis.end()
        waiting = [application(other.url).send_task("late", (LONG_S,)).id for _ in range(3)]
        until(lambda: other.do("ZCARD", "unacked_index"))
        lost, now = row(queues[0]), row(queues[1])
        assert (lost["status"], state(now)) == (b"down", (len(waiting) - 1, 1, 0))
        assert lost["cluster"] != now["cluster"]


def test_an_application_on_sentinel_goes_on_with_the_promoted_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue stays the same one, with what the replica had received."""
    monkeypatch.setattr(redis_places, "ASK_NS", 200_000_000)
    for name in "abs":
        (tmp_path / name).mkdir()
    primary, replica = Redis(tmp_path / "a", *DISKLESS), Redis(tmp_path / "b")
    with ExitStack() as ends:
        ends.enter_context(primary)
        ends.enter_context(replica)
        replica.do("REPLICAOF", "127.0.0.1", primary.port)
        port = ends.enter_context(begin_sentinel(tmp_path / "s", primary)).port
        options = {"master_name": "shop", "sentinel_kwargs": {"password": "s3cr3t"}}
        until(lambda: "slaves=1" in cli(port, "-a", "s3cr3t", "info", "sentinel"))
        app = application(f"sentinel://127.0.0.1:{port}", **options)
        its = Worker(f"sentinel://127.0.0.1:{port}", tmp_path, options=options)
        ends.callback(its.end)
        queue = watch(f"redis+sentinel://127.0.0.1:{port}/shop/0?sentinel_password=s3cr3t&workers=true")
        ends.callback(queue.close)
        sent = [app.send_task("late", (LONG_S,)).id for _ in range(5)]
        before = until(lambda: (now := row(queue))["pending"] == 1 and now)
        assert state(before) == (4, 1, 0)
        until(lambda: replica.do("LLEN", "celery") == 4 and replica.do("ZCARD", "unacked_index") == 1)
        primary.end()
        assert row(queue)["status"] == b"down"
        its.end()  # a worker that runs a task does not connect again before it has ended
        after = until(lambda: (now := row(queue))["status"] != b"down" and now)
        assert (state(after), after["cluster"]) == ((4, 1, 0), before["cluster"])
        assert after["status"] == b"ok"  # nothing was lost
        assert after["cluster"] == f"shop@127.0.0.1:{port}".encode()
        assert after["peer"].tobytes()[16:] == replica.port.to_bytes(2, "little")
        again = Worker(f"sentinel://127.0.0.1:{port}", tmp_path, options=options)
        ends.callback(again.end)
        until(lambda: again.did("begin"))
        assert set(again.did("begin")) <= set(sent)
        until(lambda: row(queue)["workers"] == f"{again.name} {again.process.pid}".encode())


def test_a_stalled_a_dead_and_a_returned_server(redis: Redis) -> None:
    application(redis.url).send_task("early", (0,))
    queue = watch(redis.url)
    assert row(queue)["status"] == b"ok"
    redis.pause()
    stalled = row(queue)
    redis.go_on()
    assert stalled["status"] == b"down"
    assert b"no answer within 0.5 s" in stalled["reason"]
    redis.end()
    dead = row(queue)
    assert (dead["status"], TABLE.by_name["failure"].names[dead["failure"]]) == (b"down", "refused")
    redis.start()
    assert state(row(queue)) == (0, 0, 0)
    (empty,) = poll(queue)
    assert (empty["status"], empty["destination"]) == (b"rewound", b"")
    assert empty["reason"].startswith(b"restarted or replaced: ")
    redis.do("CONFIG", "SET", "requirepass", "right")
    (refused,) = poll(watch(redis.url.replace("redis://", "redis://:wrong@")))
    assert (refused["status"], TABLE.by_name["failure"].names[refused["failure"]]) == (b"down", "login")
    assert b"WRONGPASS" in refused["reason"]
    queue.close()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis+cluster://:pw@host/0", "no queues in a Redis Cluster"),
        ("redis://:pw@host/0?streams=a", "unknown option 'streams'"),
        ("redis://:pw@host/0?queue=a", "unknown option 'queue'"),
        ("redis://:pw@host/0?visibility_timeout=1h", "visibility_timeout must be a number of seconds"),
        ("redis://:pw@host/0?visibility_timeout=-1", "visibility_timeout must be a number of seconds"),
        ("redis://:pw@host/zero", "cannot be read"),
        ("redis://:pw@host/0?workers=yes", "workers and tasks must be true or false"),
    ],
)
def test_what_is_no_url_is_refused_without_its_password(url: str, why: str) -> None:
    with pytest.raises(AgentError) as error:
        BROKER.sources([url])
    assert why in str(error.value.why)
    assert "visibility_timeout=3600" in error.value.remedy
    assert "pw" not in f"{error.value} {error.value.why}"


@pytest.mark.parametrize(
    ("url", "setting"),
    [
        ("amqp://u:pw@mq/vhost", "rabbitmq: ['http://mq:15692']"),
        ("pyamqp://u:pw@[::1]:5673//", "rabbitmq: ['http://[::1]:15692?amqp=5673']"),
    ],
)
def test_the_address_of_a_rabbitmq_node_names_the_setting_for_it(url: str, setting: str) -> None:
    with pytest.raises(AgentError) as error:
        BROKER.sources([url])
    assert setting in error.value.remedy
    assert "pw" not in f"{error.value} {error.value.why} {error.value.remedy}"


def test_a_url_with_all_options() -> None:
    server = CeleryServer.parse("rediss://u:p%2F@host:1/2?queues=celery,mail&visibility_timeout=43200&prefix=app%3A")
    assert (server.queues, server.visibility_timeout_s, server.prefix) == (("celery", "mail"), 43200, "app:")
    assert (server.redis.password, server.redis.db, server.redis.tls) == ("p/", 2, True)
