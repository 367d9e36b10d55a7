"""Entries of a real Redis stream that leave the queue unread, and groups that are made anew: neither is a read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from agent.batch import Batch
from agent.common.clocks import boot_ns
from agent.common.resp import RedisUrl, RespClient
from agent.correlate.correlator import Correlator
from agent.queues.brokers.redis import BROKER
from agent.queues.queue import Queue
from tests.patience import until
from tests.servers.polled import poll
from tests.servers.test_redis_streams import Redis, redis
from tests.unit.correlate_scenarios import latest

__all__ = ["redis"]


def of(queue: Queue, group: bytes = b"g") -> Any:
    (row,) = [one for one in poll(queue) if one["consumer_group"] == group]
    return row


def counted(queue: Queue, lag: int, group: bytes = b"g") -> Any:
    """The row once the entries are counted, which takes more than one poll on a busy machine."""
    until(lambda: of(queue, group)["exact"] == 1)
    row = of(queue, group)
    assert (row["lag_messages"], row["exact"]) == (lag, 1)
    return row


def reads(redis: Redis, n: int) -> None:
    if n:
        redis.do("XREADGROUP", "GROUP", "g", "c", "NOACK", "COUNT", n, "STREAMS", "s", ">")


def trim(redis: Redis) -> None:
    redis.do("XTRIM", "s", "MAXLEN", 50)


def delete(redis: Redis) -> None:
    redis.do("XDEL", "s", *[entry[0] for entry in redis.do("XRANGE", "s", "-", "+", "COUNT", 51)])  # type: ignore[attr-defined]


@pytest.mark.parametrize("remove", [trim, delete])
@pytest.mark.parametrize("read", [0, 7])
def test_removed_entries_are_not_acknowledged_ones(redis: Redis, remove: Callable[[Redis], None], read: int) -> None:
    redis.add("s", 101)
    redis.do("XGROUP", "CREATE", "s", "g", "0")
    redis.do("XGROUP", "CREATE", "s", "idle", "0")
    reads(redis, 3)
    (queue,) = BROKER.sources([redis.url])
    with closing(queue):
        counted(queue, 98)
        remove(redis)
        assert not of(queue)["out_per_s"] > 0
        assert counted(queue, 50, b"idle")["out_per_s"] == 0
        before = counted(queue, 50)
        assert before["out_per_s"] == 0
        reads(redis, read)
        last = of(queue)
        took = last["out_per_s"] * (last["t_ns"] - before["t_ns"]) / 1e9
        assert took == pytest.approx(read) or last["exact"] == 0
        counted(queue, 50 - read)


def test_the_removal_itself_is_no_rate(redis: Redis) -> None:
    redis.add("s", 101)
    redis.do("XGROUP", "CREATE", "s", "g", "0")
    (queue,) = BROKER.sources([redis.url])
    with closing(queue):
        counted(queue, 101)
        trim(redis)
        row = of(queue)
        assert (row["lag_messages"], row["out_per_s"]) == (50, 0)


@pytest.mark.parametrize("how", [("MAXLEN", 50), ("MINID", "60-0")])
def test_entries_that_are_trimmed_by_writers_before_they_are_read_are_counted(
    redis: Redis, how: tuple[str, int | str]
) -> None:
    """The group reads nothing; then it reads on, and what is trimmed behind it is nothing lost."""
    for i in range(1, 51):
        redis.do("XADD", "s", f"{i}-0", "n", i)
    redis.do("XGROUP", "CREATE", "s", "g", "0")
    redis.do("XGROUP", "CREATE", "s", "late", "30-0")
    reads(redis, 3)
    (queue,) = BROKER.sources([redis.url])
    with closing(queue):
        assert counted(queue, 47)["removed"] == 0
        assert counted(queue, 20, b"late")["removed"] == 0
        for i in range(51, 110):
            redis.do("XADD", "s", *how, f"{i}-0", "n", i)
        first = 60
        assert counted(queue, 50)["removed"] == first - 1 - 3
        assert counted(queue, 50, b"late")["removed"] == first - 1 - 30
        reads(redis, 50)
        for i in range(110, 130):
            redis.do("XADD", "s", "MAXLEN", 50, f"{i}-0", "n", i)
        assert counted(queue, 20)["removed"] == first - 1 - 3
        redis.do("XTRIM", "s", "MAXLEN", 13)
        assert counted(queue, 13)["removed"] == first - 1 - 3 + 7


def test_entries_that_are_deleted_in_the_middle_of_what_waits(redis: Redis) -> None:
    """A group that stands still has lost them; of one that reads, no rate counts them as read."""
    redis.add("s", 1009)
    ids: Any = [entry[0] for entry in redis.do("XRANGE", "s", "-", "+")]  # type: ignore[attr-defined]
    for group in ("g", "idle"):
        redis.do("XGROUP", "CREATE", "s", group, "0")
    reads(redis, 3)
    (queue,) = BROKER.sources([redis.url])
    with closing(queue):
        assert counted(queue, 1009, b"idle")["removed"] == 0
        counted(queue, 1006)
        redis.do("XDEL", "s", *ids[500:523])
        for group, lag in ((b"idle", 986), (b"g", 983)):
            counted(queue, lag, group)
            until(lambda group=group: of(queue, group)["removed"] == 23)
        redis.do("XDEL", "s", *ids[700:707], *ids[:2])  # the first two are read by g
        for group, lag, gone in ((b"idle", 977, 32), (b"g", 976, 30)):
            counted(queue, lag, group)
            until(lambda group=group, gone=gone: of(queue, group)["removed"] == gone)
        left = 976
        for i in range(11):  # it reads on, and what waits is deleted between two polls
            before = of(queue)
            reads(redis, 7)
            redis.do("XDEL", "s", *ids[900 + 3 * i : 903 + 3 * i])
            now, left = of(queue), left - 10
            took = now["out_per_s"] * (now["t_ns"] - before["t_ns"]) / 1e9
            assert not took > 7.001, i
            counted(queue, left)
        assert of(queue)["removed"] <= 30 + 33
        until(lambda: of(queue, b"idle")["removed"] == 32 + 33)


@pytest.mark.parametrize("keeps_up", [False, True])
def test_a_stopped_group_behind_a_limit_is_a_finding_and_one_that_keeps_up_is_none(
    redis: Redis, keeps_up: bool
) -> None:
    """From the server to the finding."""
    redis.add("s", 20)
    redis.do("XGROUP", "CREATE", "s", "g", "0")
    reads(redis, 20)
    correlator, found = Correlator(), list[Any]()
    (queue,) = BROKER.sources([redis.url])
    with closing(queue):
        for _ in range(15):
            until_s = time.monotonic() + 1
            for number in range(10):
                redis.do("XADD", "s", "MAXLEN", 100, "*", "n", number)
            reads(redis, 10 if keeps_up else 0)
            correlator.feed(Batch("queue_lag", poll(queue)))
            found += correlator.advance(boot_ns())
            time.sleep(max(0.0, until_s - time.monotonic()))
    found += correlator.advance(boot_ns() + 5 * 10**9)
    losses = [one for one in latest(found) if one["symptom"] == "entries_lost"]
    if keeps_up:
        assert losses == []
        return
    (loss,) = losses
    assert "of redis queue s group g were removed by the stream's limit" in loss["sentence"]
    assert loss["cause"] == "consumer_stopped", loss["sentence"]


def test_entries_that_were_read_or_skipped_on_purpose_are_not_removed_unread(redis: Redis) -> None:
    redis.add("s", 101)
    redis.do("XGROUP", "CREATE", "s", "g", "0")
    redis.do("XTRIM", "s", "MAXLEN", 47)  # before the agent began
    (queue,) = BROKER.sources([redis.url])
    with closing(queue):
        assert counted(queue, 47)["removed"] == 0
        redis.do("XGROUP", "CREATE", "s", "new", "$")
        for start in range(200, 320, 20):
            redis.add("s", 20, start)
            reads(redis, 200)
            redis.do("XREADGROUP", "GROUP", "new", "c", "NOACK", "COUNT", 200, "STREAMS", "s", ">")
            redis.do("XTRIM", "s", "MAXLEN", 5)
            assert (counted(queue, 0)["removed"], of(queue, b"new")["removed"]) == (0, 0)
        redis.add("s", 29, 400)
        assert counted(queue, 29)["removed"] == 0
        redis.do("XGROUP", "SETID", "s", "g", "$")
        redis.do("XTRIM", "s", "MAXLEN", 3)
        assert counted(queue, 0)["removed"] == 0
        redis.add("s", 2, 500)
        assert counted(queue, 2)["removed"] == 0
        redis.do("XGROUP", "SETID", "s", "g", "0")
        assert counted(queue, 5)["removed"] == 0
        redis.do("DEL", "s")
        of(queue)
        redis.add("s", 7, 600)
        redis.do("XGROUP", "CREATE", "s", "g", "$")
        assert counted(queue, 0)["removed"] == 0


def test_a_busy_stream_with_a_limit_loses_nothing_while_its_group_keeps_up(redis: Redis) -> None:
    """Writers and a reader that deletes what it has read run during the polls."""
    redis.do("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    ends = threading.Event()

    def runs() -> None:
        with closing(RespClient(RedisUrl.parse(redis.url), timeout_s=20)) as client:
            while not ends.is_set():
                client.pipeline([("XADD", "s", "MAXLEN", 100, "*", "n", n) for n in range(7)])
                ((((_, entries),),)) = client.pipeline(
                    [("XREADGROUP", "GROUP", "g", "c", "COUNT", 100, "STREAMS", "s", ">")]
                )
                ids = [entry[0] for entry in entries]
                client.pipeline([("XACK", "s", "g", *ids), ("XDEL", "s", *ids[::2])])

    (queue,) = BROKER.sources([redis.url])
    busy = threading.Thread(target=runs)
    with closing(queue):
        of(queue)
        busy.start()
        removed = [of(queue)["removed"] for _ in range(300)]
        ends.set()
        busy.join()
    assert set(removed) <= {0, -(2**63)}


@pytest.mark.parametrize("pause_s", [0, 0.003, 0.02])
def test_a_group_that_deletes_what_it_has_read_loses_nothing(redis: Redis, pause_s: float) -> None:
    """Its position is one of which the server has no counter, so that the entries are counted."""
    redis.add("s", 101)
    middle: Any = [entry[0] for entry in redis.do("XRANGE", "s", "-", "+")][50]  # type: ignore[attr-defined]
    redis.do("XGROUP", "CREATE", "s", "g", middle.decode())
    ends = threading.Event()

    def runs() -> None:
        with closing(RespClient(RedisUrl.parse(redis.url), timeout_s=20)) as client:
            while not ends.is_set():
                client.pipeline([("XADD", "s", "*", "n", n) for n in range(7)])
                ((((_, entries),),)) = client.pipeline(
                    [("XREADGROUP", "GROUP", "g", "c", "NOACK", "COUNT", 7, "STREAMS", "s", ">")]
                )
                client.pipeline([("XDEL", "s", *[entry[0] for entry in entries])])
                time.sleep(pause_s)

    (queue,) = BROKER.sources([redis.url])
    busy = threading.Thread(target=runs)
    with closing(queue):
        assert counted(queue, 50)["removed"] == 0
        busy.start()
        try:
            removed = [of(queue)["removed"] for _ in range(500)]
        finally:
            ends.set()
            busy.join()
        assert counted(queue, 50)["removed"] == 0
    assert set(removed) <= {0, -(2**63)}


@pytest.mark.parametrize("deleted", [("DEL", "s"), ("XGROUP", "DESTROY", "s", "g")])
def test_a_group_that_is_made_anew_did_not_go_back(redis: Redis, deleted: tuple[str, ...]) -> None:
    redis.add("s", 5)
    redis.do("XGROUP", "CREATE", "s", "g", "$")
    (queue,) = BROKER.sources([redis.url])
    with closing(queue):
        of(queue)
        redis.do("XGROUP", "SETID", "s", "g", "0")
        assert of(queue)["status"] == b"rewound"
        redis.do(*deleted)
        assert of(queue)["status"] == b"gone"
        redis.do("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        assert of(queue)["status"] == b"ok"
