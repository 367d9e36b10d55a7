"""What the wire says of limiters in Redis: connections, scripts, windows."""

from __future__ import annotations

import time
from hashlib import sha1
from pathlib import Path

import numpy as np
import pytest

from agent.columns import NULL_I64
from agent.common.settings import read
from agent.errors import AgentError
from agent.limiters.decision import hashed
from agent.limiters.redis_settings import RedisLimiterSettings
from agent.limiters.script import RedisCall
from agent.limiters.scripted import Limiters
from agent.redis_wire import guess as redis_guess
from agent.redis_wire import ports as redis_ports
from agent.redis_wire.redis_reader import RedisReader
from agent.tables import TABLES
from tests.unit.redis_pieces import Played, declared, request

_RESULTS = TABLES["limiter_decision"].by_name["result"].names
ASK = request("EVALSHA", "c" * 40, 1, "rate:anna", 5, 10, 2, 1)
YES, NO = b"*4\r\n:1\r\n:3\r\n$2\r\n-1\r\n$3\r\n0.4\r\n", b"*4\r\n:0\r\n:0\r\n$4\r\n0.25\r\n$3\r\n1.0\r\n"


def results(rows: np.ndarray) -> list[str]:
    return [_RESULTS[row["result"]] if row["result"] >= 0 else "?" for row in rows]


def test_a_decision_of_redis_rate() -> None:
    played = Played()
    played.send(ASK, gap=1)
    played.send(NO, reply=True, after_ns=123_000)
    (row,) = played.rows()
    assert row["library"] == b"github.com/go-redis/redis_rate" and results([row]) == ["refused"]
    assert row["limiter_id"] == b"redis_rate@10.0.0.1:6379 rate:" and row["key"] == hashed(b"anna")
    assert (row["limit_per_s"], row["burst"], row["window_ns"], row["wait_ns"], row["remaining"]) == (
        5,
        5,
        2_000_000_000,
        250_000_000,
        0,
    )
    assert (row["duration_ns"], row["pid"], row["comm"], row["step_immune"]) == (123_000, 4242, b"shop", 0)
    assert TABLES["limiter_decision"].by_name["role"].word(row["role"]) == "client"


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 19, 64])
def test_pipelined_behind_other_commands_and_cut_anywhere(cut: int) -> None:
    played = Played(state=1)
    played.send(request("GET", "a") + ASK + request("SET", "b", 1) + ASK, cut=cut, after_ns=2_000_000)
    played.send(b"$1\r\nx\r\n" + YES + b"+OK\r\n" + NO, reply=True, cut=cut)
    assert results(played.rows()) == ["allowed", "refused"]


def test_segments_that_come_twice_or_in_another_order() -> None:
    played = Played()
    data = ASK + ASK + ASK
    played.send(data, cut=50)
    played.send(YES + NO, reply=True)
    played.send(YES, reply=True)
    played.records[1:3] = [played.records[2], played.records[1], played.records[1].copy()]
    assert results(played.rows()) == ["allowed", "refused", "allowed"]


def test_what_is_missing_costs_what_it_belongs_to_and_no_more() -> None:
    reader, played = RedisReader(Limiters()), Played()
    played.send(ASK)
    played.send(YES, reply=True)
    played.send(ASK, unseen=True)
    played.send(NO, reply=True, unseen=True)
    for _ in range(3):
        played.send(ASK, gap=1 if _ == 0 else 0)
        played.send(YES, reply=True)
    assert results(played.rows(reader)) == ["allowed"] * 4 and reader.counts()["garbage"] == 0


def test_a_connection_with_requests_on_their_way_is_read_only_from_a_quiet_moment_on() -> None:
    played = Played(state=1)
    played.send(ASK, gap=1, after_ns=10_000)
    played.send(NO, reply=True)
    played.send(ASK, gap=1, after_ns=3_000_000)
    played.send(YES, reply=True)
    assert results(played.rows()) == ["allowed"]


def test_a_transaction() -> None:
    played = Played()
    played.send(request("MULTI") + ASK + request("INCR", "n") + request("EXEC"))
    played.send(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n" + YES + b":4\r\n", reply=True)
    assert results(played.rows()) == ["allowed"]


def test_one_connection_seen_at_both_ends_is_reported_once() -> None:
    here, there = Played(1), Played(2)
    for one in (here, there):
        one.send(ASK)
        one.send(YES, reply=True)
    here.records += there.records
    assert len(here.rows()) == 1


def test_a_script_that_nobody_declared_is_reported_by_its_text_or_its_key() -> None:
    text = (
        b"local n = redis.call('incr', KEYS[1]) if n == 1 then redis.call('expire', KEYS[1], ARGV[2]) end if n >"
        b" tonumber(ARGV[1]) then return 0 end return 1 -- limit"
    )
    name = sha1(text).hexdigest()
    reader, played = RedisReader(Limiters()), Played()
    played.send(request("EVALSHA", name, 1, "shop", 3, 1))
    played.send(b"-NOSCRIPT No matching script.\r\n", reply=True)
    played.send(request("EVAL", text, 1, "shop", 3, 1))
    played.send(b":1\r\n", reply=True)
    played.send(request("EVALSHA", name, 1, "shop", 3, 1))
    played.send(b":0\r\n", reply=True)
    rows = played.rows(reader)
    assert results(rows) == ["allowed", "refused"]
    assert set(rows["library"].tolist()) == {b"redis script " + name[:12].encode()}
    played.send(request("EVALSHA", "d" * 40, 1, "lock:shop", "token"))
    played.send(b":1\r\n", reply=True)
    assert len(played.rows(reader)) == 0
    played.send(request("FCALL", "f", 1, "throttle:u", 3))
    played.send(b"*2\r\n:0\r\n:0\r\n", reply=True)
    (row,) = played.rows(reader)
    assert results([row]) == ["refused"] and row["remaining"] == 0


def test_a_script_that_counts_is_no_yes_or_no() -> None:
    """What it compares with is in the program: of a counter that says 1 nothing is known, and its second answer is no
    rest.
    """
    text = (
        b"-- rate limit\nlocal n = redis.call('INCR', KEYS[1]) if n == 1 then redis.call('PEXPIRE', KEYS[1], 9)"
        b" end\nreturn {n, 9}"
    )
    reader, played = RedisReader(Limiters()), Played()
    for n in (1, 2):
        played.send(request("EVAL", text, 1, "shop"))
        played.send(b"*2\r\n:%d\r\n:9\r\n" % n, reply=True)
    rows = played.rows(reader)
    assert results(rows) == ["?", "?"] and np.isnan(rows["remaining"]).all()
    for n in (1, 2, 1):  # its text was not seen: from the first answer on that is no yes
        played.send(request("EVALSHA", "d" * 40, 1, "rate:u"))
        played.send(b"*2\r\n:%d\r\n:9\r\n" % n, reply=True)
    rows = played.rows(reader)
    assert results(rows) == ["allowed", "?", "?"] and np.isnan(rows["remaining"][1:]).all()


def test_scripts_of_a_known_library_that_only_ask_are_no_decisions() -> None:
    """limits' get_window_stats, with the arguments of a window's and of none of its decisions."""
    played = Played()
    played.send(request("EVALSHA", "e" * 40, 1, "LIMITS:LIMITER/u/5/1/minute", 17.5, 5))
    played.send(b"*2\r\n$4\r\n17.5\r\n:5\r\n", reply=True)
    played.send(request("EVALSHA", "f" * 40, 2, "LIMITS:LIMITER/u/5/1/minute", "LIMITS:LIMITER/u/5/1/minute/-1", 60))
    played.send(b"*4\r\n$-1\r\n:0\r\n:0\r\n:0\r\n", reply=True)
    played.send(request("EVALSHA", "d" * 40, 1, "b_mail_settings", 0))
    played.send(b"*1\r\n$-1\r\n", reply=True)
    assert len(played.rows()) == 0


def test_a_function_is_reported_by_the_text_of_its_library() -> None:
    code = (
        b"#!lua name=shop\nredis.register_function('take', function(keys, args) -- a limit\nif redis.call('INCR',"
        b" keys[1]) > 3 then return 0 end redis.call('EXPIRE', keys[1], 9) return 1 end)"
    )
    played = Played()
    played.send(request("FUNCTION", "LOAD", "REPLACE", code))
    played.send(b"$4\r\nshop\r\n", reply=True)
    code = (
        b"#!lua name=edge\nredis.register_function('throttle', function(keys, args) return redis.call('INCR', keys[1])"
        b" > 2 and 0 or 1 end)"
    )
    played.send(request("FUNCTION", "LOAD", code))
    played.send(b"$4\r\nedge\r\n", reply=True)
    for name in ("take", "throttle"):
        for n in (1, 0):
            played.send(request("FCALL", name, 1, "u"))
            played.send(b":%d\r\n" % n, reply=True)
    assert results(played.rows()) == ["allowed", "refused"] * 2


def test_counters_that_expire() -> None:
    reader, played = RedisReader(Limiters()), Played()
    played.send(request("INCR", "hits:7:3"))
    played.send(b":1\r\n", reply=True)
    played.send(request("EXPIRE", "hits:7:3", 10))
    played.send(b":1\r\n", reply=True)
    played.send(request("INCR", "hits:9:3"))
    played.send(b":5\r\n", reply=True)
    played.send(request("INCR", "visitors"))
    played.send(b":6\r\n", reply=True)
    rows = played.rows(reader)
    assert results(rows) == ["?", "?"] and rows["window_ns"].tolist() == [10_000_000_000] * 2
    own = declared(
        {"hits": {"command": "incr", "key": "hits:", "allowed": "reply <= 3", "limit": 3, "remaining": "3 - reply"}}
    )
    reader = RedisReader(Limiters(own))
    for n in range(1, 6):
        played.send(request("INCR", "hits:7:3") + request("EXPIRE", "hits:7:3", 10))
        played.send(b":%d\r\n:1\r\n" % n, reply=True)
    rows = played.rows(reader)
    assert results(rows) == ["allowed"] * 3 + ["refused"] * 2 and rows["remaining"].tolist() == [2, 1, 0, 0, 0]
    assert set(rows["library"].tolist()) == {b"hits"} and rows["limit_per_s"][-1] == pytest.approx(0.3)


def test_a_counter_that_is_made_with_its_end() -> None:
    def play(reader: RedisReader) -> np.ndarray:
        played = Played()
        for key, made in (("login:a", b"+OK"), ("login:a", b"$-1"), ("login:b", b"+OK")):
            played.send(request("SET", key, 1, "EX", 65, "NX"))
            played.send(made + b"\r\n", reply=True)
            if made == b"$-1":
                for n in (2, 3, 4):
                    played.send(request("INCRBY", key, 1))
                    played.send(b":%d\r\n" % n, reply=True)
        played.send(request("SET", "lock:a", "9f2c", "NX", "PX", 100))
        played.send(b"+OK\r\n", reply=True)
        return played.rows(reader)

    rows = play(RedisReader(Limiters()))
    assert results(rows) == ["?"] * 5 and set(rows["window_ns"].tolist()) == {65_000_000_000}
    assert set(rows["library"].tolist()) == {b"redis incrby"}
    rows = play(RedisReader(Limiters(declared({"logins": {"command": "INCR", "key": "login:", "limit": 3}}))))
    assert results(rows) == ["allowed"] * 3 + ["refused", "allowed"] and set(rows["library"].tolist()) == {b"logins"}
    assert rows["limit_per_s"][1:].tolist() == pytest.approx([3 / 65] * 4)


@pytest.mark.parametrize("end", ["EXPIREAT", "PEXPIREAT"])
def test_a_counter_that_ends_at_an_instant_has_no_known_window(end: str) -> None:
    played = Played()
    played.send(request("INCR", "w:1") + request(end, "w:1", 1_900_000_000))
    played.send(b":1\r\n:1\r\n", reply=True)
    rows = played.rows()
    assert results(rows) == ["?"] and rows["window_ns"].tolist() == [NULL_I64]


def test_a_declared_sorted_set_by_how_many_there_were() -> None:
    played = Played()
    for count in (9, 10):
        played.send(request("ZCARD", "posts:u"))
        played.send(b":%d\r\n" % count, reply=True)
    own = declared(
        {"posts": {"command": "ZCARD", "key": "posts:", "allowed": "reply < 10", "limit": 10, "window_s": 60}}
    )
    assert results(played.rows(RedisReader(Limiters(own)))) == ["allowed", "refused"]
    assert len(played.rows()) == 0  # nothing that makes it one, and nobody says so


def test_a_sorted_set_of_times() -> None:
    played = Played()
    for count in (4, 5):
        played.send(
            request("MULTI")
            + request("ZREMRANGEBYSCORE", "w:u", 0, 1)
            + request("ZADD", "w:u", 2, "x")
            + request("ZCARD", "w:u")
            + request("EXPIRE", "w:u", 60)
            + request("EXEC")
        )
        played.send(b"+OK\r\n" + b"+QUEUED\r\n" * 4 + b"*4\r\n:1\r\n:1\r\n:%d\r\n:1\r\n" % count, reply=True)
    rows = played.rows()
    assert len(rows) == 2 and set(rows["library"].tolist()) == {b"redis zcard"}


@pytest.mark.parametrize(
    ("asked", "reply", "library", "result", "left"),
    [
        (
            request("CL.THROTTLE", "u", 15, 30, 60),
            b"*5\r\n:1\r\n:16\r\n:0\r\n:2\r\n:30\r\n",
            b"redis-cell",
            "refused",
            0,
        ),
        (
            request("cl.throttle", "u", 15, 30, 60),
            b"*5\r\n:0\r\n:16\r\n:14\r\n:-1\r\n:2\r\n",
            b"redis-cell",
            "allowed",
            14,
        ),
        (
            request(
                "EVALSHA",
                "e" * 40,
                2,
                "request_rate_limiter.{u}.tokens",
                "request_rate_limiter.{u}.timestamp",
                10,
                20,
                "",
                1,
            ),
            b"*2\r\n:0\r\n:0\r\n",
            b"spring-cloud-gateway",
            "refused",
            0,
        ),
        (
            request("EVALSHA", "fd1d18883f2412cde40adbaa7fb4d8399e907535", 1, "zone:u", 2000, 1000, 17, 0),
            b"*2\r\n:2\r\n:1500\r\n",
            b"lua-resty-redis-ratelimit",
            "refused",
            None,
        ),
        (
            request("EVALSHA", "9450de540565d89de15092a716555821601f128b", 1, "b", "old", "new"),
            b":1\r\n",
            b"io.github.bucket4j",
            "allowed",
            None,
        ),
        (
            request("INCRBY", "domain_key_value_1764000000", 1) + request("EXPIRE", "domain_key_value_1764000000", 60),
            b":3\r\n:1\r\n",
            b"github.com/envoyproxy/ratelimit",
            "?",
            None,
        ),
        (request("EVALSHA", "f" * 40, 1, "LIMITS:LIMITER/u/5/1/minute", 60, 1), b":6\r\n", b"limits", "refused", 0),
        (
            request("evalsha", "a1de965f42e177aa339706bd580f049065eca79a", 1, "pay:u", 1, 2, 7, 2),
            b"*2\r\n:8\r\n:1500\r\n",
            b"rate-limiter-flexible",
            "refused",
            0,
        ),
        (
            request(
                "EVAL",
                "local consumed = redis.call('incrby', KEYS[1], ARGV[1]) local ttl = redis.call('pttl', KEYS[1]) return"
                " {consumed, ttl}",
                1,
                "pay:u",
                1,
                2,
                7,
                2,
            ),
            b"*2\r\n:2\r\n:1500\r\n",
            b"rate-limiter-flexible",
            "allowed",
            5,
        ),
        (
            request("evalsha", "a1de965f42e177aa339706bd580f049065eca79a", 1, "pay:u", 1, 2),
            b"*2\r\n:8\r\n:1500\r\n",
            b"rate-limiter-flexible",
            "?",
            None,
        ),
        (
            request("EVALSHA", "895b92e1712734e1b464999be23953485475357b", 1, "rl:10.0.0.1", 2000),
            b"*2\r\n:1\r\n:2000\r\n",
            b"rate-limit-redis",
            "?",
            None,
        ),
        (
            request("EVALSHA", "b13943e359636db027ad280f1def143f02158c13", 1, "app:u:17", 60000, 1),
            b":11\r\n",
            b"@upstash/ratelimit",
            "?",
            None,
        ),
        (
            request(
                "EVALSHA",
                "e1391e429b699c780eb0480350cd5b7280fd9213",
                2,
                "app:u:17",
                "app:u:16",
                10,
                1764000000000,
                60000,
                1,
            ),
            b":-1\r\n",
            b"@upstash/ratelimit",
            "refused",
            0,
        ),
        (
            request("EVALSHA", "5bece90aeef8189a8cfd28995b479529e270b3c6", 1, "app:u", 10, 1000, 5, 1764000000000, 1),
            b"*2\r\n:4\r\n:1764000001000\r\n",
            b"@upstash/ratelimit",
            "allowed",
            4,
        ),
        (
            request("evalsha", "f00a66a4159e8488fd6e3b8ccba92a8c602f2062", 1, "b_mail_settings", 0),
            b"*3\r\n:1\r\n$-1\r\n:2\r\n",
            b"bottleneck",
            "refused",
            None,
        ),
        (
            request("EVALSHA", "b8a19d47785922bb04e7a9fdb49e90d89be1b8af", 1, "shop-u", 60000, 5, "false", "false"),
            b"*2\r\n:3\r\n:60000\r\n",
            b"@fastify/rate-limit",
            "allowed",
            2,
        ),
        (
            request("EVALSHA", "b" * 40, 1, "fastify-rate-limit-u", 60000, 5, "false", "false"),
            b"*2\r\n:6\r\n:900\r\n",
            b"@fastify/rate-limit",
            "refused",
            0,
        ),
        (
            request("EVALSHA", "b" * 40, 2, "{u:default}:hits", "{u:default}:blocked", "default", 60000, 5, 60000),
            b"*4\r\n:6\r\n:900\r\n:1\r\n:700\r\n",
            b"@nest-lab/throttler-storage-redis",
            "refused",
            0,
        ),
        (
            request("EVALSHA", "ad00ff6f099013f2aea94ed48c220cbf616c6a07", 1, "limit:u", 1764000000000.5, 60000, 5, 0),
            b"*3\r\n:1\r\n:1764000060000\r\n:5\r\n",
            b"async-ratelimiter",
            "allowed",
            0,
        ),
        (
            request("EVALSHA", "868f66d2db4929999a50c5ed5f57985f3cff7461", 1, "app/u", 1764000000000, 5, 1, 60000, 1),
            b"*6\r\n:0\r\n:4\r\n:0\r\n:60000\r\n$1\r\n1\r\n$1\r\n1\r\n",
            b"redis-gcra",
            "allowed",
            4,
        ),
        (
            request("EVALSHA", "a3f9e982197e9e887f6b5dcb7ec273863bb83aad", 1, "api:u", 5, 60000),
            b":0\r\n",
            b"fastapi-limiter",
            "allowed",
            None,
        ),
        (
            request("EVALSHA", "b" * 40, 1, "fastapi-limiter:u:0:0", 5, 60000),
            b":900\r\n",
            b"fastapi-limiter",
            "refused",
            None,
        ),
        (
            request("EVALSHA", "b" * 40, 1, "throttled:v1:token_bucket:u", 0.5, 5, 1),
            b"*2\r\n$-1\r\n:3\r\n",
            b"throttled-py",
            "allowed",
            3,
        ),
        (
            request("EVALSHA", "b" * 40, 1, "shop:v1:gcra:u", 12, 5, 1),
            b"*4\r\n:1\r\n:0\r\n$2\r\n60\r\n$2\r\n11\r\n",
            b"throttled-py",
            "refused",
            0,
        ),
        (
            request(
                "EVALSHA",
                "b" * 40,
                2,
                "throttled:v1:sliding_window:u:period:7",
                "throttled:v1:sliding_window:u:period:6",
                60,
                5,
                1,
                1764000000000,
            ),
            b"*3\r\n$-1\r\n:2\r\n$1\r\n0\r\n",
            b"throttled-py",
            "allowed",
            3,
        ),
        (
            request(
                "EVALSHA",
                "9cab88b1455f88d9ec955a816bb2da7dab402cdb",
                1,
                "bucket",
                1764000060000,
                1,
                "u",
                1,
                1764000000000,
                5,
                4,
            ),
            b"*2\r\n:-1\r\n:-1\r\n",
            b"pyrate_limiter.RedisBucket",
            "allowed",
            None,
        ),
        (
            request(
                "EVALSHA", "12a3befaf96dc1cd0dc2c2af0160972b6981b685", 1, "bucket", 1764000060000, 1, "u", 1, 60000, 5
            ),
            b":0\r\n",
            b"pyrate_limiter.RedisBucket",
            "refused",
            None,
        ),
        (
            request(
                "EVALSHA",
                "b" * 40,
                5,
                "shop",
                "{shop}:value",
                "{shop}:value:7",
                "{shop}:permits",
                "{shop}:permits:7",
                1,
                1764000000000,
                "x",
            ),
            b"$-1\r\n",
            b"org.redisson",
            "allowed",
            None,
        ),
        (
            request(
                "EVAL",
                "redis.call('zadd', permitsName, 1) redis.call('pexpire', KEYS[1], rate)",
                5,
                "shop",
                "{shop}:value",
                "{shop}:value:7",
                "{shop}:permits",
                "{shop}:permits:7",
                1,
                1764000000000,
                "x",
            ),
            b":812\r\n",
            b"org.redisson",
            "refused",
            None,
        ),
    ],
)
def test_known_limiters(asked: bytes, reply: bytes, library: bytes, result: str, left: float | None) -> None:
    played = Played()
    played.send(asked)
    played.send(reply, reply=True)
    (row,) = played.rows()
    assert row["library"] == library and results([row]) == [result]
    assert np.isnan(row["remaining"]) if left is None else row["remaining"] == left


@pytest.mark.parametrize(
    ("given", "output"),
    [
        ({"a": {"script": "1234"}}, "redis_limiter_scripts.a.script cannot be '1234'"),
        ({"a": {"allowed": "reply == 1"}}, "must have exactly one of script, function and command, and has none"),
        ({"a": {"command": "INCR", "function": "f"}}, "one of script, function and command, and has several"),
        ({"a": {"command": "INCR", "allowed": "reply"}}, "redis_limiter_scripts.a.allowed cannot be 'reply'"),
        ({"a": {"command": "INCR", "remaining": "answer.1"}}, "redis_limiter_scripts.a.remaining cannot be 'answer.1'"),
        ({"a": {"command": "INCR", "limmit": 3}}, "there is no setting redis_limiter_scripts.a.limmit"),
        ({"a": {"command": "RM -RF /"}}, "redis_limiter_scripts.a.command cannot be"),
        ({"a": 5}, "redis_limiter_scripts.a cannot be 5"),
    ],
)
def test_settings_that_are_wrong(given: dict[str, object], output: str) -> None:
    with pytest.raises(AgentError) as caught:
        declared(given)
    assert output in str(caught.value)


def test_ports() -> None:
    assert read(RedisLimiterSettings, {"redis_ports": ["6380", 7000]}).ports == (6380, 7000)
    for wrong in (["80000"], [0], [True], ["x"], list(range(1, 34))):
        with pytest.raises(AgentError, match="redis_ports"):
            read(RedisLimiterSettings, {"redis_ports": wrong})


def test_ports_of_processes(tmp_path: Path) -> None:
    for pid, comm, line in (
        (1, b"redis-server\n", b"redis-server 127.0.0.1:7001\0"),
        (2, b"valkey-server\n", b"/usr/bin/valkey-server *:7002 [cluster]\0"),
        (3, b"nginx\n", b"nginx *:80\0"),
        (4, b"dragonfly\n", b"dragonfly\0--port\x007003\0"),
        (5, b"redis-server\n", b"redis-server [::1]:7004\0"),
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_bytes(comm)
        (tmp_path / str(pid) / "cmdline").write_bytes(line)
    assert redis_ports.ports(frozenset({9}), tmp_path) == {6379, 9, 7001, 7002, 7003, 7004}


@pytest.mark.parametrize(
    "text",
    [
        b"register_function" + b" " * 16_000,
        (b"return" + b" " * 2_000) * 4,
        b"x incr expire " * 600,
        b"if a " * 1_600,
        b"if" + b" " * 8_000 + b"!",
        b"return" + b" " * 8_000 + b"!",
        b"return" + b"\n " * 4_000 + b"!",
        b"return {a," * 800,
        b"--[[" * 2_000,
        b"'zremrangebyscore' 'incr' " * 300,
    ],
)
def test_no_text_takes_long_to_look_through(text: bytes) -> None:
    begun = time.process_time()
    redis_guess.FUNCTIONS.findall(text)
    redis_guess.returns_count(text), redis_guess.inverted(text), redis_guess.is_single_value(text)
    redis_guess.is_limiter_like(RedisCall("EVAL", "f" * 40, [b"k"], [], 1), text)
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("reply", [b"--1", b"-", b"", b"-" * 7, b"1" * 30])
def test_what_is_no_number_is_none(reply: bytes) -> None:
    assert not redis_guess.counts(reply)
    assert "result" not in redis_guess.guessed(RedisCall("EVALSHA", "f" * 40, [b"rate:k"], [], reply))


def _counts(*requests: tuple[bytes, bytes]) -> np.ndarray:
    played = Played()
    for asked, reply in requests:
        played.send(asked)
        played.send(reply, reply=True)
    return played.rows(RedisReader(Limiters()))


def test_a_lock_is_no_counter_and_changes_none() -> None:
    lock = [
        (request("SET", "app:lock:1", 1, "EX", 30, "NX"), b"+OK\r\n"),
        (request("EXPIRE", "app:lock:1", 30), b":1\r\n"),
    ]
    times = [(request("SET", f"app:lock:{i}", 1_700_000_000 + i, "NX", "EX", 3600), b"+OK\r\n") for i in range(3)]
    visits = [(request("INCR", "app:stats:visits"), b":%d\r\n" % i) for i in (1000, 1001)]
    assert not len(_counts(*lock, *lock, *visits))
    counter = [(request("INCR", "app:rl:ip"), b":1\r\n"), (request("EXPIRE", "app:rl:ip", 60), b":1\r\n")]
    rows = _counts(*counter, *times, (request("INCR", "app:rl:ip"), b":2\r\n"))
    assert rows["window_ns"].tolist() == [60 * 10**9] * 2 and set(rows["limiter_id"].tolist()) == {
        rows["limiter_id"][0]
    }


def test_a_counter_made_by_set_is_one_with_what_counts_it() -> None:
    made = [(request("SET", f"login:{who}", 1, "EX", 60, "NX"), b"+OK\r\n") for who in "ab"]
    counted = [(request("INCR", f"login:{who}"), b":2\r\n") for who in "ab"]
    rows = _counts(made[0], counted[0], made[1], counted[1])
    assert len(rows) == 4 and len(set(rows["limiter_id"].tolist())) == 1


@pytest.mark.parametrize(
    "asked",
    [
        b"*3\r\n$6\r\nEXPIRE\r\n$1\r\nk\r\n$-1\r\n",
        b"*3\r\n$4\r\nEVAL\r\n$-1\r\n$1\r\n0\r\n",
        b"*2\r\n$6\r\nCLIENT\r\n$-1\r\n",
    ],
)
def test_a_request_with_nothing_for_a_word_is_none(asked: bytes) -> None:
    assert not len(_counts((asked, b"-ERR Protocol error: invalid bulk length\r\n")))


def test_what_is_declared_of_incr_is_not_of_a_sum_of_bytes() -> None:
    played = Played()
    for asked, reply in (("api:u", 1), 3), (("api:bytes:u", 5000), 90_000):
        played.send(request("INCRBY", *asked))
        played.send(b":%d\r\n" % reply, reply=True)
    own = declared({"api": {"command": "INCR", "key": "api:", "limit": 5}})
    rows = played.rows(RedisReader(Limiters(own)))
    assert results(rows[rows["library"] == b"api"]) == ["allowed"]


def test_a_limit_that_is_worked_out_is_no_comparison() -> None:
    declared({"a": {"command": "INCR", "key": "x:", "limit": "arg.0 * 2"}})
