"""Duplicates and order of the entries of a real stream, by a producer that knows its own."""

from __future__ import annotations

import json
import secrets
import threading
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from agent.common.resp import RedisUrl, RespClient
from agent.errors import AgentError
from agent.queues.brokers.redis import BROKER
from agent.queues.packing import pack
from agent.queues.redis_tail import _SKIP, FIRST, MOST
from agent.tables import TABLES
from tests.servers.test_redis_streams import Redis
from tests.unit.test_message_order import shuffled

TABLE = TABLES["message_order"]


def uuid7(ms: int) -> str:
    """As of RFC 9562, section 5.7."""
    return str(uuid.UUID(int=ms << 80 | 7 << 76 | 0b10 << 62 | secrets.randbits(12) << 64 | secrets.randbits(62)))


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with Redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


def produce(
    redis: Redis, stream: str, numbers: Sequence[int], form: str = "{}", field: str = "n", more: int = 0
) -> None:
    client = RespClient(RedisUrl.parse(redis.url), timeout_s=20)
    for at in range(0, len(numbers), 500):
        some = numbers[at : at + 500]
        client.pipeline(
            [("XADD", stream, "*", "id", form.format(f"o{n}"), field, n, "payload", "x" * more) for n in some]
        )
    client.close()


class Polled:
    """The server's queues, polled once at the start."""

    def __init__(self, redis: Redis, options: str) -> None:
        (self.queue,) = BROKER.sources([f"{redis.url}?{options}"])
        self.lag: list[dict[str, Any]] = []
        self.rows = TABLE.empty(0)
        self.poll()

    def poll(self, times: int = 1) -> None:
        for _ in range(times):
            self.lag = self.queue.poll()
            rows = np.frombuffer(pack(self.queue.order(), TABLE.name), TABLE.dtype)
            self.rows = np.concatenate([self.rows, rows])

    def sums(self, *names: str) -> list[int]:
        return [
            int(np.maximum(self.rows[name], 0).sum()) for name in names or ("messages", "duplicates", "out_of_order")
        ]


def test_23_duplicates_and_7_swaps_among_10_007_entries(redis: Redis) -> None:
    polled = Polled(redis, "streams=orders&id=id&seq=n")
    order = shuffled(10_007 - 23, 23, 7, 11)
    for at in range(0, len(order), 900):
        produce(redis, "orders", order[at : at + 900])
        polled.poll()
    assert polled.sums() == [10_007, 23, 7]
    assert set(polled.rows["cluster"].tolist()) == {f"127.0.0.1:{redis.port}".encode()}
    assert set(polled.rows["source"].tolist()) == {TABLE.code("source", "sample")}
    twice = polled.rows[polled.rows["duplicates"] > 0]
    assert all(name.startswith(b"o") for name in twice["duplicate_id"].tolist())
    polled.poll(2)
    assert polled.sums() == [10_007, 23, 7]
    polled.queue.close()


@pytest.mark.parametrize("back_ms", [7_200_000, 300])
def test_uuids_of_version_7_after_a_step_back(redis: Redis, back_ms: int) -> None:
    """One each ms, of a process that begins anew after the step, so that it does not remember the last one."""
    stream, now_ms = f"uuids{back_ms}", 1_800_000_000_000
    polled = Polled(redis, f"streams={stream}&id=id&seq=id")
    times = [*range(now_ms, now_ms + 1000), *range(now_ms + 1000 - back_ms, now_ms + 1700 - back_ms)]
    client = RespClient(RedisUrl.parse(redis.url), timeout_s=20)
    for at in range(0, len(times), 850):
        client.pipeline([("XADD", stream, "*", "id", uuid7(ms)) for ms in times[at : at + 850]])
        polled.poll()
    client.close()
    assert polled.sums() == [1700, 0, min(700, back_ms - 1)]  # one of the same ms is none
    assert polled.rows["behind"].max() == back_ms - 1
    polled.queue.close()


@pytest.mark.parametrize(
    ("back_ms", "duplicates", "out_of_order"),
    [(7_200_000, 0, 700), (300, 300, 0)],  # docs/timers.md
    ids=("2 h", "0.3 s"),
)
def test_snowflake_ids_after_a_step_back(redis: Redis, back_ms: int, duplicates: int, out_of_order: int) -> None:
    """Of a worker that takes its clock as it is, and makes one id each ms."""
    stream, now_ms = f"snowflakes{back_ms}", 250_000_000_000
    polled = Polled(redis, f"streams={stream}&id=id&seq=n")
    times = [*range(now_ms, now_ms + 1000), *range(now_ms + 1000 - back_ms, now_ms + 1700 - back_ms)]
    for at in range(0, len(times), 850):
        produce(redis, stream, [ms << 22 | 5 << 12 for ms in times[at : at + 850]])
        polled.poll()
    assert polled.sums() == [1700, duplicates, out_of_order]
    polled.queue.close()


def test_more_than_a_poll_reads_is_read_later(redis: Redis) -> None:
    produce(redis, "burst", [1])
    polled = Polled(redis, "streams=burst&id=id&seq=n")
    produce(redis, "burst", shuffled(2 * MOST + 7, 5, 3, 1)[1:])
    polled.poll()
    assert polled.sums("messages") == [MOST + 1]
    polled.poll(2)
    assert polled.sums("messages", "unread") == [2 * MOST + 12, 0]
    polled.queue.close()


def test_what_is_far_behind_is_skipped_and_counted(redis: Redis) -> None:
    produce(redis, "flood", [1])
    polled = Polled(redis, "streams=flood&id=id")
    produce(redis, "flood", range(2, _SKIP + 14))
    polled.poll()
    assert polled.sums("messages", "unread") == [1, _SKIP + 12]
    produce(redis, "flood", [0, 0])
    polled.poll()
    assert polled.sums("messages", "duplicates") == [3, 1]
    polled.queue.close()


def test_entries_that_were_there_before_are_checked_too(redis: Redis) -> None:
    produce(redis, "old", [*range(FIRST), 5, 6])
    polled = Polled(redis, "streams=old&id=id&seq=n")
    assert polled.sums() == [FIRST, 2, 0]
    polled.queue.close()


def test_entries_that_come_while_a_poll_asks_are_read_once(redis: Redis) -> None:
    produce(redis, "busy", range(FIRST + 7))
    over, at = threading.Event(), FIRST + 7

    def go_on() -> None:
        nonlocal at
        while not over.is_set():
            produce(redis, "busy", range(at, at + 50))
            at += 50

    writer = threading.Thread(target=go_on)
    writer.start()
    try:
        for _ in range(5):
            polled = Polled(redis, "streams=busy&id=id&seq=n")
            polled.poll(5)
            assert polled.sums("duplicates", "out_of_order") == [0, 0]
            polled.queue.close()
    finally:
        over.set()
        writer.join()


def test_entries_that_a_server_lost_are_not_read_again(redis: Redis) -> None:
    redis.do("FLUSHALL")
    produce(redis, "lost", range(50))
    polled = Polled(redis, "streams=lost&id=id&seq=n")
    dump = redis.do("DUMP", "lost")
    produce(redis, "lost", range(50, 60))
    polled.poll()
    redis.do("RESTORE", "lost", 0, dump, "REPLACE")  # type: ignore[arg-type]
    polled.poll()
    produce(redis, "lost", range(60, 65))
    polled.poll()
    assert polled.sums() == [65, 0, 0]
    polled.queue.close()


def test_fields_within_json_and_entries_without_one(redis: Redis) -> None:
    polled = Polled(redis, "streams=mails&id=id/order/0/key&seq=n")
    form = json.dumps({"order": [{"key": "KEY"}]}).replace("{", "{{").replace("}", "}}").replace("KEY", "{}")
    produce(redis, "mails", [1, 2, 4, 3, 1], form)
    produce(redis, "mails", [5, 6], form="no JSON")
    produce(redis, "mails", [7], form="[" * 50_000)
    polled.poll()
    assert polled.sums() == [5, 1, 1]
    (why,) = {row["reason"] for row in polled.lag if "entries have" in str(row.get("reason"))}
    assert why == "no consumer group; 3 new entries have no id/order/0/key: option id of the server's URL"
    polled.queue.close()


def test_a_stream_that_is_made_anew_and_one_that_is_trimmed(redis: Redis) -> None:
    produce(redis, "anew", range(50))
    polled = Polled(redis, "streams=anew&id=id&seq=n")
    redis.do("DEL", "anew")
    polled.poll()
    produce(redis, "anew", range(100, 110))
    polled.poll()
    redis.do("XTRIM", "anew", "MAXLEN", 0)
    produce(redis, "anew", range(110, 113))
    polled.poll()
    assert polled.sums() == [63, 0, 0]
    polled.queue.close()


def test_large_entries_are_read_a_few_at_a_time(redis: Redis) -> None:
    polled = Polled(redis, "streams=big&id=id")
    produce(redis, "big", [*range(40), 3], more=200_000)
    polled.poll(12)
    assert polled.sums() == [41, 1, 0]
    assert not any(row.get("status") == "down" for row in polled.lag)
    polled.queue.close()


def test_a_user_who_may_not_read_entries_is_told_the_rule(redis: Redis) -> None:
    redis.do("ACL", "SETUSER", "watch", "on", ">pw", "~*", "+@all", "-xrange", "-xrevrange")
    produce(redis, "closed", range(3))
    (one,) = BROKER.sources([f"redis://watch:pw@127.0.0.1:{redis.port}?streams=closed&id=id"])
    assert any("+xrange" in str(row.get("reason")) for row in one.poll()), one.poll()
    assert one.order() == []
    one.close()


@pytest.mark.parametrize("options", ["seq=n", "id=a&nope=b"])
def test_options_that_do_not_fit_are_refused(redis: Redis, options: str) -> None:
    with pytest.raises(AgentError, match="cannot be read"):
        RedisUrl.parse(f"{redis.url}?{options}")
