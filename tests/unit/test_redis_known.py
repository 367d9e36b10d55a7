"""Limiters in Redis whose requests need more than one look: Envoy's counters, scripts of a library that decide
nothing.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from agent.demo.limiter_part import SCRIPT
from agent.limiters.scripted import Limiters
from agent.limiters.scripts import demo
from agent.redis_wire import guess as redis_guess
from agent.redis_wire.redis_reader import RedisReader
from tests.unit.redis_pieces import Played, declared, request
from tests.unit.test_redis_wire import results

_ENVOY = b"github.com/envoyproxy/ratelimit"


def _envoy(*asked: tuple[str, int, int], own: dict[str, object] | None = None) -> np.ndarray:
    """Rows of (key, count, end in s), each in a pipeline of its own."""
    played = Played()
    for key, count, end_s in asked:
        played.send(request("INCRBY", key, 1) + request("EXPIRE", key, end_s))
        played.send(b":%d\r\n:1\r\n" % count, reply=True)
    return played.rows(RedisReader(Limiters(declared(own or {}))))


def test_envoys_windows_are_its_units_whatever_it_adds_to_their_ends() -> None:
    """By default a counter lives up to 300 s longer than its window; a minute begins with a second, too."""
    rows = _envoy(
        ("edge_user_anna_1764000001", 1, 187),
        ("edge_user_anna_1764000060", 1, 299),
        ("edge_path_/x_1764000060", 1, 71),
        ("edge_path_/x_1764000060", 2, 340),
        ("edge_all_y_1763942400", 1, 86_400 + 11),
        ("edge_hour_z_1763996400", 1, 3_600),
    )
    assert (rows["window_ns"] // 10**9).tolist() == [1, 1, 60, 60, 86_400, 3_600]
    assert set(rows["library"].tolist()) == {_ENVOY} and results(rows) == ["?"] * 6
    assert len(set(rows["limiter_id"].tolist())) == 1 and rows["limiter_id"][0].endswith(b" edge_")
    assert len(set(rows["key"].tolist())) == 4  # one for each that is limited, in all of its windows


def test_a_limit_of_envoys_that_is_declared_goes_by_its_window() -> None:
    own = {"anna": {"command": "INCRBY", "key": "edge_user_", "allowed": "reply <= 2", "limit": 2}}
    rows = _envoy(*(("edge_user_anna_1764000001", n, 200 + n) for n in (1, 2, 3)), own=own)
    assert results(rows) == ["allowed", "allowed", "refused"] and rows["limit_per_s"].tolist() == [2, 2, 2]


_ADMITS = (
    "if n > tonumber(ARGV[1]) then return 0 end return 1",
    "if n <= limit then redis.call('ZADD', KEYS[1], now, now) return 1 end return 0",
    "if limit < n then return 0 else return 1 end",
    "if tokens < tonumber(ARGV[1]) then return 0 end return 1",
    "if tokens >= cost then tokens = tokens - cost redis.call('SET', KEYS[1], tokens) return 1 end return 0",
    "return n <= limit and 1 or 0",
    "if n > 0 then return 1 end return 0",
    "local allowed = tokens >= cost\nreturn {allowed, tokens}",
    "-- return limited\nreturn allowed",
)
_TURNS_AWAY = (
    "if n > tonumber(ARGV[1]) then return 1 end return 0",
    "if redis.call('INCR', KEYS[1]) > tonumber(ARGV[1]) then return true end return false",
    "if n < limit then redis.call('ZADD', KEYS[1], now, now) return 0 end return 1",
    "if tonumber(ARGV[1]) < n then return 1 end return 0",
    "if tokens < 1 then return 1 end return 0",
    "return n > limit and 1 or 0",
    "local limited = n > limit\nreturn {limited, n}",
    "return is_blocked",
)


@pytest.mark.parametrize(
    ("text", "turned"), [*((one, False) for one in _ADMITS), *((one, True) for one in _TURNS_AWAY)]
)
def test_what_1_means_is_read_from_a_scripts_text(text: str, turned: bool) -> None:
    assert redis_guess.inverted(text.encode()) is turned


def test_a_script_by_which_1_is_a_refusal() -> None:
    text = (
        "local count = redis.call('INCR', KEYS[1]) if count == 1 then redis.call('EXPIRE', KEYS[1], 60) end\nlocal"
        " limited = count > 1 and 1 or 0 return {limited, count}"
    )
    played = Played()
    for n in (1, 2):
        played.send(request("EVAL", text, 1, "u"))
        played.send(b"*2\r\n:%d\r\n:%d\r\n" % (n - 1, n), reply=True)
    rows = played.rows()
    assert results(rows) == ["allowed", "refused"] and np.isnan(rows["remaining"]).all()  # a count is no rest


@pytest.mark.parametrize(
    "text",
    [
        (
            "local c = redis.call('INCR', KEYS[1]) if c == 1 then redis.call('EXPIRE', KEYS[1], 9) end if c >"
            " tonumber(ARGV[1]) then return 0 end return 1"
        ),
        (
            "redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, ARGV[1]) if redis.call('ZCARD', KEYS[1]) < 3 then"
            " redis.call('ZADD', KEYS[1], 1, 1) return 1 end return 0"
        ),
        (
            "local rcall = redis.call local c = rcall('INCR', KEYS[1]) if c == 1 then rcall('EXPIRE', KEYS[1], 9) end"
            " if c > tonumber(ARGV[1]) then return 0 end return 1"
        ),
    ],
)
def test_a_counter_or_a_window_is_a_limiter_whatever_its_words_are(text: str) -> None:
    played = Played()
    for n in (1, 0):
        played.send(request("EVAL", text, 1, "c:anna", 1))
        played.send(b":%d\r\n" % n, reply=True)
    assert results(played.rows()) == ["allowed", "refused"]


@pytest.mark.parametrize(
    ("asked", "reply"),
    [
        (request("EVALSHA", "38980404d0f647f699e5bd8082405d06ec0fef92", 1, "rateOfShop", 5, 60000, 0, 0), b":1\r\n"),
        (
            request(
                "EVAL",
                "redis.call('hsetnx', KEYS[1], 'rate', ARGV[1]); -- of another version",
                1,
                "rateOfShop",
                5,
                60000,
                0,
            ),
            b":0\r\n",
        ),
        (
            request(
                "EVALSHA",
                "b" * 40,
                5,
                "rate",
                "{rate}:value",
                "{rate}:value:7",
                "{rate}:permits",
                "{rate}:permits:7",
                17,
            ),
            b":1\r\n",
        ),
        (
            request("EVALSHA", "b" * 40, 3, "bull:rate:wait", "bull:rate:active", "bull:rate:prioritized", 1),
            b"*4\r\n:0\r\n:0\r\n:0\r\n:0\r\n",
        ),
        (
            request(
                "EVAL",
                "--[[\n  Adds a job.\n  Input:\n    KEYS[1] 'limiter'\n]]\nlocal rcall = redis.call rcall('INCR', 'x')"
                " rcall('PEXPIRE', limiterKey)",
                1,
                "bull:a:limiter",
            ),
            b":0\r\n",
        ),
        (request("EVALSHA", "b" * 40, 1, "throttled:v1:gcra:u", 12, 5), b"*4\r\n:0\r\n:5\r\n$1\r\n0\r\n$1\r\n0\r\n"),
        (request("EVALSHA", "4c7d9ef62b3d4f8efd8d11d5d2fd1a56b1e723bc", 1, "rate-of-u"), b"*2\r\n:0\r\n:0\r\n"),
    ],
)
def test_what_a_known_library_asks_besides_is_no_decision(asked: bytes, reply: bytes) -> None:
    played = Played()
    played.send(asked)
    played.send(reply, reply=True)
    assert not len(played.rows())


def _played(*asked: tuple[bytes, bytes]) -> np.ndarray:
    played = Played()
    for one, reply in asked:
        played.send(one)
        played.send(reply, reply=True)
    return played.rows()


def test_a_counter_whose_end_somebody_asks_for() -> None:
    """As rack-attack does with Rails up to 7.0."""
    key = "rack::attack:498783:req/ip:10.1.2.3"
    rows = _played(
        (request("incrby", key, 1), b":2\r\n"),
        (request("ttl", key), b":1124\r\n"),
        (request("incrby", key, 1), b":3\r\n"),
        (request("INCR", "visitors"), b":7\r\n"),
        (request("TTL", "visitors"), b":-1\r\n"),
    )
    assert results(rows) == ["?", "?"] and set(rows["library"].tolist()) == {b"redis incrby"}


_ADD = "return redis.call('exists',KEYS[1])<1 and redis.call('setex',KEYS[1],ARGV[2],ARGV[1])"


def test_laravels_limiter_counts_what_it_admits() -> None:
    key = "laravel_cache:5c785c036466adea360111aa28563bfd556b5fba"
    hit = [
        (request("EVAL", _ADD, 1, f"{key}:timer", 1764000060, 60), b"+OK\r\n"),
        (request("EVAL", _ADD, 1, key, 0, 60), b"+OK\r\n"),
    ]
    rows = _played(
        *hit,
        (request("INCRBY", key, 1), b":1\r\n"),
        *[(one, b"$-1\r\n") for one, _ in hit],
        (request("INCRBY", key, 1), b":2\r\n"),
        (request("INCRBY", "laravel_cache:visitors", 1), b":9\r\n"),
    )
    assert results(rows) == ["allowed", "allowed"] and set(rows["library"].tolist()) == {b"laravel"}
    assert set(rows["window_ns"].tolist()) == {60 * 10**9}


def test_scripts_of_which_nothing_is_known_are_named() -> None:
    reader, played = RedisReader(Limiters()), Played()
    for script, key, reply in (
        ("c" * 40, "w:anna", b":1\r\n"),
        ("d" * 40, "h\x1b[1m", b"*2\r\n$-1\r\n:3\r\n"),
        ("c" * 40, "w:bert", b":0\r\n"),
        ("e" * 40, "job:1", b"$5\r\nhello\r\n"),
        ("f" * 40, "rate:u", b":1\r\n"),
    ):
        played.send(request("EVALSHA", script, 1, key, 3))
        played.send(reply, reply=True)
    assert len(played.rows(reader)) == 1
    assert [(one["script"], one["asked"], one["keys"]) for one in reader.unknown.rows()] == [
        ("c" * 40, 2, "w:"),
        ("d" * 40, 1, ""),
    ]
    assert "cccc (keys w:), " in reader.unknown.text() and reader.unknown.text().isprintable()


def test_a_queue_of_what_is_delayed_is_no_limiter() -> None:
    """As Redisson has it: what expires there is no key."""
    text = (
        "local expired = redis.call('zrangebyscore', KEYS[2], 0, ARGV[1], 'limit', 0, 9) for i, v in ipairs(expired) do"
        " redis.call('rpush', KEYS[1], v) end return nil"
    )
    assert not len(_played((request("EVAL", text, 2, "q:a", "timeout:{q:a}", 1764000000000), b"$-1\r\n")))


def test_a_counter_that_outlives_everybody_has_no_window() -> None:
    played = Played()
    played.send(request("INCR", "rl:x") + request("EXPIRE", "rl:x", 9_999_999_999_999))
    played.send(b":1\r\n:1\r\n", reply=True)
    played.send(request("SET", "rm:x", 1, "EX", 9_999_999_999_999, "NX") + request("INCR", "rm:x"))
    played.send(b"+OK\r\n:2\r\n", reply=True)
    rows = played.rows(RedisReader(Limiters()))
    assert len(rows) == 3 and (rows["window_ns"] < 1).all()


def test_a_counter_that_is_made_for_a_month_of_milliseconds_has_that_window() -> None:
    played = Played()
    played.send(request("SET", "rm:x", 1, "PX", 2_592_000_000, "NX") + request("INCR", "rm:x"))
    played.send(b"+OK\r\n:2\r\n", reply=True)
    rows = played.rows(RedisReader(Limiters()))
    assert (rows["window_ns"] // 10**9).tolist() == [2_592_000] * 2


def test_a_command_that_is_declared_for_other_keys_is_no_script() -> None:
    own: dict[str, object] = {"a": {"command": "HINCRBY", "key": "edge_", "allowed": "reply <= 2"}}
    played = Played()
    reader = RedisReader(Limiters(declared(own)))
    played.send(request("HINCRBY", "other:1", "f", 1))
    played.send(b":1\r\n", reply=True)
    played.rows(reader)
    assert reader.unknown.text() == "" and not reader.unknown.rows()


def test_the_demos_own_script_is_reported_once() -> None:
    assert not len(_played((request("EVAL", SCRIPT, 1, "window:a", 1, 1000, 5, 7), b":4\r\n")))
    assert demo.LIMITERS[0].scripts == (hashlib.sha1(SCRIPT.encode()).hexdigest(),)
