"""The state of a consumer group of a real Redis: scripts that know what they do, polled once a second of a clock that
the test moves on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isnan, nan
from pathlib import Path
from typing import Any

import pytest

from agent.common.resp import RedisUrl
from agent.queues.brokers.redis import RedisStreams
from agent.queues.judged import Judged
from tests.servers.test_redis_streams import Redis

S = 10**9


class Group:
    """Stream s with group g: what scripts do to it."""

    def __init__(self, redis: Redis) -> None:
        self.do = redis.do
        self.do("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")

    def add(self, n: int) -> None:
        for _ in range(n):
            self.do("XADD", "s", "*", "n", 1)

    def read(self, n: int, *, acknowledge: bool = True) -> None:
        reply: Any = self.do("XREADGROUP", "GROUP", "g", "c", "COUNT", n, "STREAMS", "s", ">")
        if reply and acknowledge:
            self.do("XACK", "s", "g", *(entry[0] for entry in reply[0][1]))


def growing(group: Group, i: int) -> None:
    group.add(7)
    group.read(3)


def draining(group: Group, i: int) -> None:
    group.add(307 if i == 0 else 2)
    group.read(7)


def consumer_stops(group: Group, i: int) -> None:
    group.add(2)
    if i < 13:
        group.read(5)


def no_consumer(group: Group, i: int) -> None:
    group.add(1)


def idle_producer(group: Group, i: int) -> None:
    group.add(11 if i < 3 else 0)
    group.read(13)


def never_acknowledges(group: Group, i: int) -> None:
    group.add(3)
    group.read(3, acknowledge=False)


def trimmed_while_it_stands_still(group: Group, i: int) -> None:
    group.add(2)
    if i < 5:
        group.read(5)
    if i == 16:  # the lag is 0 in one poll
        group.do("XTRIM", "s", "MAXLEN", 0)


def set_back(group: Group, i: int) -> None:
    group.add(5)
    if i == 20:
        group.do("XGROUP", "SETID", "s", "g", "0", "ENTRIESREAD", 0)
    group.read(5)


def made_anew(group: Group, i: int) -> None:
    if i == 20:
        group.do("DEL", "s")
        group.do("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    group.add(2)
    if i < 2:
        group.read(1)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[tuple[Group, Judged]]:
    redis = Redis(tmp_path)
    now_ns = [0]
    queue = Judged("redis", RedisStreams(RedisUrl.parse(f"{redis.url}?streams=s"), timeout_s=20), lambda: now_ns[0])
    poll = queue.poll

    def next_poll() -> Any:
        now_ns[0] += S
        return poll()

    queue.poll = next_poll  # type: ignore[method-assign]
    yield Group(redis), queue
    queue.close()
    redis.end()


@pytest.mark.parametrize(
    ("script", "status", "words"),
    [
        (growing, "lagging", "lag grew from"),
        (draining, "draining", "lag fell from"),
        (consumer_stops, "stalled", "nothing read for"),
        (no_consumer, "stopped", "no consumer for"),
        (idle_producer, "ok", ""),
        (never_acknowledges, "stalled", "none acknowledged for"),
        (trimmed_while_it_stands_still, "stalled", "nothing read for"),
        (set_back, "rewound", "the group went back from"),
        (made_anew, "rewound", ""),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_state_is_what_the_script_did(
    group: tuple[Group, Judged], script: Callable[[Group, int], None], status: str, words: str
) -> None:
    its, queue = group
    for i in range(26):
        script(its, i)
        row = next(row for row in queue.poll() if row.get("consumer_group"))
    assert row["status"] == status
    assert words in str(row["reason"]) and bool(row["reason"]) == (status != "ok")
    drains_s, error_s = (float(str(row.get(name, nan))) for name in ("drains_in_s", "forecast_err_s"))
    if status == "draining":
        # 307 + 25 * 2 came and 26 * 7 were read: 175 are left, which fall by 5 a second.
        assert row["lag_messages"] == 175
        assert abs(drains_s - 35) <= error_s < 5
    else:
        assert isnan(drains_s)
