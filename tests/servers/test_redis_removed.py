"""Entries of a real Redis stream that leave the queue unread, and groups that are made anew: neither is a read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from agent.queues.brokers.redis import BROKER
from agent.queues.catalogue import Queue
from tests.servers.celery_pieces import wait
from tests.servers.test_redis_streams import Redis, poll, redis

__all__ = ["redis"]


def of(queue: Queue, group: bytes = b"g") -> Any:
    (row,) = [one for one in poll(queue) if one["consumer_group"] == group]
    return row


def counted(queue: Queue, lag: int, group: bytes = b"g") -> Any:
    """The row once the entries are counted, which takes more than one poll on a busy machine."""
    wait(lambda: of(queue, group)["exact"] == 1)
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
