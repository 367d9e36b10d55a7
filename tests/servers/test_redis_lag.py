"""Lag of Redis streams where the server's own counter is absent or wrong, against a real server. XRANGE counts the
truth.

redis_exporter (pkg exporter/streams.go) exports `lag` of XINFO GROUPS as it is, and NULL as 0: of the groups of
``CASES`` it is wrong for each whose ``counter`` is not the truth.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent.common.resp import RedisUrl, RespClient
from agent.queues import redis_lag, redis_walk
from agent.queues.brokers.redis import BROKER, RedisStreams
from agent.queues.judged import Judged
from tests.servers.polled import one, poll
from tests.servers.test_redis_streams import Redis, redis

__all__ = ["redis"]

READ = ("XREADGROUP", "GROUP", "g", "c", "COUNT")


def fill(server: Redis, n: int, start: int = 1, stream: str = "s", text: str = "v") -> None:
    """Entries with ids start-0, start+1-0, ..."""
    client = RespClient(RedisUrl.parse(server.url), timeout_s=20)
    client.pipeline([("XADD", stream, f"{i}-0", "k", text) for i in range(start, start + n)])
    client.close()


def truth(server: Redis, stream: str = "s", group: str = "g") -> int:
    """Entries behind the group's position."""
    for info in server.do("XINFO", "GROUPS", stream):  # type: ignore[attr-defined]
        about = dict(zip(info[::2], info[1::2], strict=True))
        if about[b"name"] == group.encode():
            ms, _, seq = about[b"last-delivered-id"].partition(b"-")
            return len(server.do("XRANGE", stream, f"{int(ms)}-{int(seq) + 1}", "+"))  # type: ignore[arg-type]
    raise AssertionError(group)


class Case(NamedTuple):
    """commands: after 499 entries; counter: what XINFO GROUPS says, None for NULL."""

    name: str
    commands: tuple[tuple[str | int, ...], ...]
    counter: int | None
    lag: int


CREATE = ("XGROUP", "CREATE", "s", "g")
CASES = (
    Case("honest", ((*CREATE, "199-0", "ENTRIESREAD", 199),), 300, 300),
    Case("ENTRIESREAD far too high", ((*CREATE, "199-0", "ENTRIESREAD", 98765),), 499 - 98765, 300),
    Case("ENTRIESREAD too high, but possible", ((*CREATE, "199-0", "ENTRIESREAD", 487),), 12, 300),
    Case("ENTRIESREAD too low", ((*CREATE, "199-0", "ENTRIESREAD", 17),), 482, 300),
    Case("set to an id inside", ((*CREATE, "199-0"),), None, 300),
    Case(
        "deleted ahead",
        (
            (*CREATE, "0"),
            (*READ, 199, "STREAMS", "s", ">"),
            ("XDEL", "s", *[f"{i}-0" for i in range(300, 323)]),
        ),
        None,
        277,
    ),
    Case(
        "trimmed, then read on",
        (
            (*CREATE, "0"),
            (*READ, 101, "STREAMS", "s", ">"),
            ("XTRIM", "s", "MAXLEN", 211),
            (*READ, 100, "STREAMS", "s", ">"),
            *(("XADD", "s", f"{i}-0", "k", "v") for i in range(500, 800)),
        ),
        598,  # 111 in versions that count trimmed entries as read
        411,
    ),
)


def of_group(queue: Any) -> Any:
    """The group's row; remarks on its stream are rows of their own."""
    (row,) = [row for row in poll(queue) if row["consumer_group"] == b"g"]
    return row


def info(server: Redis, stream: str = "s") -> dict[bytes, Any]:
    (group,) = server.do("XINFO", "GROUPS", stream)  # type: ignore[attr-defined]
    return dict(zip(group[::2], group[1::2], strict=True))


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_lag_is_counted_where_the_servers_counter_is_not_right(redis: Redis, case: Case) -> None:
    fill(redis, 499)
    for command in case.commands:
        redis.do(*command)
    if case.name != "trimmed, then read on":
        assert info(redis)[b"lag"] == case.counter
    (queue,) = BROKER.sources([redis.url])
    row = of_group(queue)
    assert truth(redis) == case.lag
    assert (row["lag_messages"], row["exact"], row["inexact_reason"]) == (case.lag, 1, b"")
    redis.do("XADD", "s", "5000-0", "k", "v")
    assert of_group(queue)["lag_messages"] == case.lag + 1  # growth shows
    redis.do(*READ, 37, "STREAMS", "s", ">")
    row = of_group(queue)
    assert (row["lag_messages"], row["exact"]) == (truth(redis), 1)
    redis.do(*READ, 1000, "STREAMS", "s", ">")
    assert (of_group(queue)["lag_messages"], truth(redis)) == (0, 0)


def test_a_counter_that_is_set_wrong_later_is_found(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(redis, 499)
    redis.do(*CREATE, "199-0", "ENTRIESREAD", 199)
    (queue,) = BROKER.sources([redis.url])
    assert (of_group(queue)["lag_messages"], info(redis)[b"lag"]) == (300, 300)
    monkeypatch.setattr(redis_lag, "VERIFY_NS", 0)
    redis.do("XGROUP", "SETID", "s", "g", "210-0", "ENTRIESREAD", 450)
    row = of_group(queue)
    assert (row["lag_messages"], row["exact"], info(redis)[b"lag"]) == (289, 1, 49)


def test_a_backlog_beyond_a_polls_budget_has_both_bounds_until_it_is_counted(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_walk, "MAX_ENTRIES", 1_000)
    monkeypatch.setattr(redis_walk, "MAX_S", 5.0)
    fill(redis, 4999)
    redis.do("XGROUP", "CREATE", "s", "g", "199-0")
    (queue,) = BROKER.sources([redis.url])
    lows, total = [], 0
    for turn in range(12):
        row = of_group(queue)
        assert row["lag_messages"] >= truth(redis)
        if row["exact"]:
            break
        assert b"id inside the stream" in row["inexact_reason"]
        assert row["lag_at_least"] <= truth(redis)
        lows.append(int(row["lag_at_least"]))
        redis.do(*READ, 11, "STREAMS", "s", ">")
        total += 11
        fill(redis, 3, start=10_000 + 3 * turn)
    assert len(lows) >= 4
    assert all(b - a > 500 for a, b in itertools.pairwise(lows[1:]))
    assert (row["lag_messages"], row["exact"], row["lag_at_least"]) == (truth(redis), 1, -(2**63))


@pytest.mark.parametrize(("start", "recount_ns"), [(11, 60 * 10**9), (12, 0)])
def test_bounds_hold_whatever_happens_to_the_stream(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, start: int, recount_ns: int
) -> None:
    """Random adds, reads, deletions, trims and settings of the group; each poll is exact, or its bounds hold."""
    monkeypatch.setattr(redis_walk, "MAX_ENTRIES", 150)
    monkeypatch.setattr(redis_walk, "PAGE_ENTRIES", 40)
    monkeypatch.setattr(redis_walk, "RECOUNT_NS", recount_ns)
    rng = random.Random(start)
    fill(redis, 700)
    redis.do(*CREATE, "100-0")
    (queue,) = BROKER.sources([redis.url])
    newest, exact = 700, 0
    for _ in range(250):
        what = rng.choice(["add", "add", "read", "read", "delete", "trim", "set", "many", "none"])
        if what in ("add", "many"):
            n = rng.randrange(1, 20) if what == "add" else 300
            fill(redis, n, start=newest + 1)
            newest += n
        elif what == "read":
            redis.do(*READ, rng.randrange(1, 40), "STREAMS", "s", ">")
        elif what == "delete":
            at = rng.randrange(max(1, newest - 900), newest + 1)
            redis.do("XDEL", "s", *[f"{i}-0" for i in range(at, at + rng.randrange(1, 9))])
        elif what == "trim":
            redis.do("XTRIM", "s", "MAXLEN", 800)
        elif rng.random() < 0.2 and what == "set":
            redis.do("XGROUP", "SETID", "s", "g", f"{rng.randrange(max(1, newest - 900), newest)}-0")
        row = of_group(queue)
        if row["exact"]:
            exact += 1
            assert row["lag_messages"] == truth(redis)
        else:
            assert row["lag_at_least"] <= truth(redis) <= row["lag_messages"], row["inexact_reason"]
    assert exact > 40


def test_large_entries_are_counted_within_the_bounds_of_a_reply(redis: Redis) -> None:
    """No reply is refused, since a page is as small as its entries are large."""
    fill(redis, 97)
    fill(redis, 53, start=1000, text="x" * 300_000)
    fill(redis, 41, start=2000)
    redis.do("XGROUP", "CREATE", "s", "g", "7-0")
    queue = Judged("redis", RedisStreams(RedisUrl.parse(redis.url), timeout_s=20))
    for _ in range(60):
        row = of_group(queue)
        assert row["status"] != b"down"
        assert row["lag_messages"] >= 184
        if row["exact"]:
            break
        assert row["lag_at_least"] <= 184
    assert (row["lag_messages"], row["exact"]) == (184, 1)


def test_large_entries_of_many_streams_do_not_make_a_server_down(redis: Redis) -> None:
    for i in range(61):
        fill(redis, 2, stream=f"s{i:02d}", text="x" * 100_000)
        redis.do("XGROUP", "CREATE", f"s{i:02d}", "g", "0")
    queue = Judged("redis", RedisStreams(RedisUrl.parse(redis.url), timeout_s=20))
    for _ in range(2):
        rows = poll(queue)
        assert rows["status"].tolist() == [b"ok"] * 61
        assert rows["lag_messages"].tolist() == [2] * 61
    queue.close()


def test_pending_entries_that_no_longer_exist_are_named(redis: Redis) -> None:
    """A group that works goes on beside entries that nobody can process (redis/redis#5718)."""
    fill(redis, 20)
    redis.do(*CREATE, "0")
    redis.do("XREADGROUP", "GROUP", "g", "dead", "COUNT", 13, "STREAMS", "s", ">")
    (queue,) = BROKER.sources([redis.url])
    assert one(queue)["pending_deleted"] == 0
    redis.do("XDEL", "s", "2-0", "5-0", "7-0")
    rows = [poll(queue) for _ in range(2)][-1]
    row, remark = rows
    assert (row["pending"], row["pending_deleted"], row["holder"]) == (13, 3, b"dead")
    assert (remark["destination"], remark["consumer_group"]) == (b"s", b"")
    assert b"group g: 3 pending entries no longer exist" in remark["reason"]
    redis.do("XTRIM", "s", "MINID", "14")
    row, _ = poll(queue)
    assert (row["pending"], row["pending_deleted"], row["lag_messages"], row["holder"]) == (13, 13, 7, b"")
    assert row["oldest_pending_s"] != row["oldest_pending_s"]  # nobody waits for them
    redis.do("XACK", "s", "g", *[f"{i}-0" for i in range(1, 14)])
    row = one(queue)
    assert (row["pending"], row["pending_deleted"]) == (0, 0)


def test_undelivered_entries_that_were_trimmed_are_named(redis: Redis) -> None:
    fill(redis, 101)
    redis.do(*CREATE, "0")
    redis.do("XREADGROUP", "GROUP", "g", "c", "COUNT", 2, "STREAMS", "s", ">")
    redis.do("XTRIM", "s", "MAXLEN", 13)
    (queue,) = BROKER.sources([redis.url])
    row, remark = poll(queue)
    assert (row["lag_messages"], row["exact"]) == (13, 1)
    if info(redis)[b"lag"] != 13:  # Redis 8 no longer counts them
        assert b"86 entries were removed before they were delivered" in remark["reason"]


def test_idle_consumers_that_hold_entries_are_named(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.queues.redis_consumers.IDLE_MS", 0)
    fill(redis, 20)
    redis.do(*CREATE, "0")
    for name, n in (("alpha", 7), ("beta", 11)):
        redis.do("XREADGROUP", "GROUP", "g", name, "COUNT", n, "STREAMS", "s", ">")
    redis.do("XGROUP", "CREATECONSUMER", "s", "g", "free")
    row = one(BROKER.sources([redis.url])[0])
    assert (row["held_idle"], row["idle_holders"]) == (18, b"beta 11, alpha 7")
    monkeypatch.setattr("agent.queues.redis_consumers.IDLE_MS", 60_000)
    row = one(BROKER.sources([redis.url])[0])
    assert (row["held_idle"], row["idle_holders"]) == (0, b"")


def test_a_server_without_rights_to_read_entries_leaves_the_counter_unverified(tmp_path: Path) -> None:
    with Redis(tmp_path) as server:
        fill(server, 499)
        server.do(*CREATE, "199-0", "ENTRIESREAD", 199)
        server.do("ACL", "SETUSER", "mon", "on", ">x", "allkeys", "+xinfo", "+scan", "+info", "+time", "+xpending")
        row, missing = poll(BROKER.sources([f"redis://mon:x@127.0.0.1:{server.port}"])[0])
        assert (row["lag_messages"], row["exact"], row["lag_at_least"]) == (300, 0, 1)
        assert b"not verified" in row["inexact_reason"]
        assert b"+xrange" in missing["reason"]
