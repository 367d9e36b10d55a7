"""Streams and groups of a real Redis server that are deleted while they are watched."""

from __future__ import annotations

import pytest

from agent.queues import gone
from agent.queues.brokers.redis import BROKER
from tests.servers.polled import poll
from tests.servers.test_redis_lag import fill
from tests.servers.test_redis_streams import Redis, redis

__all__ = ["redis"]

DELETIONS = {
    "group": (("XGROUP", "DESTROY", "s", "g"),),
    "stream": (("DEL", "s"),),
    "all": (("FLUSHALL",),),
    "stream, made again without the group": (("DEL", "s"), ("XADD", "s", "*", "k", "v")),
    "another key in its place": (("DEL", "s"), ("SET", "s", "x")),
}


@pytest.mark.parametrize("named", ["", "?streams=s"])
@pytest.mark.parametrize("how", DELETIONS)
def test_a_deleted_group_is_a_state_of_its_own(
    redis: Redis, how: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(redis, 31)
    redis.do("XGROUP", "CREATE", "s", "g", "0")
    (queue,) = BROKER.sources([redis.url + named])
    assert poll(queue)["status"].tolist() == [b"ok"]
    for command in DELETIONS[how]:
        redis.do(*command)
    for times in (3, 5):
        for _ in range(times):
            with pytest.raises(Exception, match=r"NOGROUP|WRONGTYPE"):
                redis.do("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "STREAMS", "s", ">")
        (row,) = [row for row in poll(queue) if row["consumer_group"] == b"g"]
        assert (row["destination"], row["status"], row["lag_messages"]) == (b"s", b"gone", -(2**63))
        assert row["reason"]
        if "another" not in how:
            assert row["errors"] == f"NOGROUP {times}".encode()
            assert f"NOGROUP {times} times" in row["reason"].decode()
    rows = poll(queue)
    (row,) = [row for row in rows if row["consumer_group"] == b"g"]
    assert not any(b"no such key" in row["reason"] for row in rows)  # its group is gone; that says it
    assert (row["status"], row["errors"]) == (b"gone", b"")
    assert row["server_role"] == b"primary"
    monkeypatch.setattr(gone, "_SHOWN_NS", 0)  # a group that nobody misses is forgotten, unless it is configured
    assert (b"gone" in poll(queue)["status"].tolist()) == bool(named)
    monkeypatch.undo()
    redis.do("DEL", "s")
    redis.do("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    (row,) = poll(queue)
    assert (row["status"], row["lag_messages"]) == (b"ok", 0)
