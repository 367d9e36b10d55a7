"""Counters in Redis that no longer expire, as the wire shows them: INCR without EXPIRE, and what only resembles it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from agent.columns import NULL_I64
from agent.limiters.scripted import Limiters
from agent.redis_wire import counters, windows
from agent.redis_wire.redis_reader import RedisReader
from tests.unit.redis_pieces import Played, declared, request

_S, _WINDOW_S, _EVERY_NS = 1_000_000_000, 5, 500_000_000
#: (count, seconds since the program began, key) -> the request that gives the counter its end, if it makes one.
Ending = Callable[[int, float, str], bytes | None]


class Redis:
    """A client that counts a few keys, and a server that lets them expire."""

    def __init__(self) -> None:
        self.played = Played()
        self.counts: dict[str, list[float]] = {}  # count, end
        self.is_read = True

    def now_s(self) -> float:
        return self.played.t_ns / _S

    def ask(self, data: bytes, reply: bytes) -> None:
        if self.is_read:
            self.played.send(data)
            self.played.send(reply, reply=True)

    def count(self, key: str, ending: Ending) -> None:
        count = self.counts.get(key, [0, np.inf])
        if self.now_s() >= count[1]:
            count = [0, np.inf]
        count[0] += 1
        self.counts[key] = count
        self.ask(request("INCR", key), b":%d\r\n" % count[0])
        asked = ending(int(count[0]), self.now_s(), key)
        if asked is not None:
            if b"EXPIRE" in asked:
                count[1] = self.now_s() + _WINDOW_S
            self.ask(asked, b":1\r\n")


def play(
    ending: Ending,
    seconds: int = 100,
    keys: tuple[str, ...] = ("rl:a", "rl:b"),
    every: int = 1,
    reader: RedisReader | None = None,
) -> np.ndarray:
    """The rows; every: only each so many count is read."""
    redis = Redis()
    for n in range(int(seconds * _S / _EVERY_NS)):
        redis.played.send(request("PING"), after_ns=_EVERY_NS)
        redis.played.send(b"+PONG\r\n", reply=True)
        for key in keys:
            at = len(redis.played.records)
            redis.count(key, ending)
            if n % every:
                del redis.played.records[at:]
    return redis.played.rows(reader or RedisReader(Limiters()))


def expire(key: str) -> bytes:
    return request("EXPIRE", key, _WINDOW_S)


def first_only(count: int, at: float, key: str) -> bytes | None:
    return expire(key) if count == 1 else None


def lost(count: int, at: float, key: str) -> bytes | None:
    return None if key == "rl:b" and at > 40 else first_only(count, at, key)


def test_a_counter_that_lost_its_expiry() -> None:
    rows = play(lost)
    ages = rows[rows["unexpired_ns"] > NULL_I64]
    assert len(set(ages["key"].tolist())) == 1 and len(ages) > 50
    begun_s = (ages["t_ns"] - ages["unexpired_ns"]) / _S
    assert begun_s.min() == pytest.approx(begun_s.max()) and 40 < begun_s[0] < 46
    assert ages["unexpired_ns"].min() > 30 * _S and ages["window_ns"].tolist() == [_WINDOW_S * _S] * len(ages)


def test_it_ends_when_the_counter_begins_anew() -> None:
    def later(count: int, at: float, key: str) -> bytes | None:
        return expire(key) if 80 < at < 81 else lost(count, at, key)

    rows = play(later, 110)
    ages = rows[rows["unexpired_ns"] > NULL_I64]
    assert len(ages) and ages["t_ns"].max() < 87 * _S


def renewed(count: int, at: float, key: str) -> bytes | None:
    return expire(key)  # with each count: it goes on as long as it is asked for, and that is seen


def seldom(count: int, at: float, key: str) -> bytes | None:
    return expire(key) if key == "rl:a" and count == 1 else None  # b is meant to stay


def checked(count: int, at: float, key: str) -> bytes | None:
    if key == "rl:b" and at > 40:
        return request("TTL", key)  # replies 1: it has an end that was set in another way
    return first_only(count, at, key)


def at_an_instant(count: int, at: float, key: str) -> bytes | None:
    return None if key == "rl:b" and at > 40 else request("EXPIREAT", key, 1_900_000_000) if count == 1 else None


def test_a_count_that_fell_is_of_a_new_counter_however_little() -> None:
    """Where most requests are not read, neither its first count nor its EXPIRE may be."""
    redis = Redis()

    def now(count: int, at: float, key: str) -> bytes | None:
        redis.is_read &= n < 15 or count > 1
        return first_only(count, at, key)

    for n in range(160):
        redis.played.t_ns += _EVERY_NS
        redis.is_read = n < 30 or n % 10 > 6
        redis.count("rl:a", now)
    rows = redis.played.rows(RedisReader(Limiters()))
    assert len(rows) > 50 and (rows["unexpired_ns"] == NULL_I64).all()


def once_only(count: int, at: float, key: str) -> bytes | None:
    return expire(key) if count == 1 and (key == "rl:a" or at < 4) else None


@pytest.mark.parametrize("ends", [1, 2])
def test_one_expiry_is_no_baseline(ends: int) -> None:
    """Also if the connection is seen at both ends."""
    redis, far = Redis(), []
    for _ in range(200):
        redis.played.send(request("PING"), after_ns=_EVERY_NS)
        redis.played.send(b"+PONG\r\n", reply=True)
        for key in ("rl:a", "rl:b"):
            redis.count(key, once_only)
    if ends == 2:
        for record in redis.played.records:
            far.append(record.copy())
            far[-1]["flow"], far[-1]["netns"], far[-1]["at_server"] = 2, 9, 1
        redis.played.records = [one for both in zip(redis.played.records, far, strict=True) for one in both]
    rows = redis.played.rows(RedisReader(Limiters()))
    assert len(rows) > 300 and (rows["unexpired_ns"] == NULL_I64).all()


def test_the_window_comes_with_the_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if other keys' windows have taken the place of this one's."""
    monkeypatch.setattr(windows, "_PREFIXES", 1)
    own = Limiters(declared({"customers": {"command": "INCR", "key": "rl:", "limit": 20}}))
    rows = play(lost, keys=("q:a", "rl:b"), reader=RedisReader(own))
    ages = rows[rows["unexpired_ns"] > NULL_I64]
    assert len(ages) > 50 and (ages["window_ns"] == _WINDOW_S * _S).all()


HEALTHY: dict[str, Ending] = {
    "an expiry at the first count": first_only,
    "an expiry at each count": renewed,
    "a counter that is meant to stay": seldom,
    "one with an end, as TTL shows": checked,
    "one that ends at an instant": at_an_instant,
}


@pytest.mark.parametrize("every", [1, 3, 7])
@pytest.mark.parametrize("name", [*HEALTHY])
def test_what_only_resembles_it(name: str, every: int) -> None:
    rows = play(HEALTHY[name], every=every)
    assert len(rows) >= 4 and (rows["unexpired_ns"] == NULL_I64).all()


def test_only_so_many_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "_KEYS", 4)
    reader, redis = RedisReader(Limiters()), Redis()
    for i in range(10):
        redis.count(f"rl:{i}", first_only)
    redis.played.rows(reader)
    assert reader.counts()["counters_forgotten"] == 6
