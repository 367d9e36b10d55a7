"""The RESP of both ways of a connection, however its bytes are cut, and what is none."""

from __future__ import annotations

import pytest

from agent.redis_wire.resp_stream import KEPT_ITEMS, KEPT_TEXT, Cut, Garbage, Push, ReplyError, RespStream
from tests.unit.redis_pieces import attack, request

REQUESTS = request("EVALSHA", "b" * 40, 1, "rate:a\r\nb", 5, "") + b"PING  x\r\n" + request("GET", "\r\n*1\r\n")
ASKED = [[b"EVALSHA", b"b" * 40, b"1", b"rate:a\r\nb", b"5", b""], [b"PING", b"x"], [b"GET", b"\r\n*1\r\n"]]
REPLIES = (
    b"*4\r\n:1\r\n:-4\r\n$2\r\n-1\r\n*1\r\n$-1\r\n+OK\r\n-ERR"
    b" no\r\n%2\r\n+a\r\n:1\r\n+b\r\n*0\r\n|1\r\n+ttl\r\n:3\r\n#t\r\n,2.5\r\n_\r\n(99\r\n"
    b"=7\r\ntxt:abc\r\n!3\r\nbad\r\n~2\r\n#f\r\n*-1\r\n>2\r\n+message\r\n$1\r\nx\r\n"
)
DECODED = [
    [1, -4, b"-1", [None]],
    b"OK",
    ReplyError(b"ERR no"),
    [b"a", 1, b"b", []],
    True,
    2.5,
    None,
    b"99",
    b"abc",
    ReplyError(b"bad"),
    [False, None],
    Push([b"message", b"x"]),
]


@pytest.mark.parametrize(("data", "requests", "expected"), [(REQUESTS, True, ASKED), (REPLIES, False, DECODED)])
def test_split_at_each_byte(data: bytes, requests: bool, expected: list[object]) -> None:
    for at in range(len(data) + 1):
        stream = RespStream(requests=requests)
        got = [value for part in (data[:at], data[at:]) for value, _ in stream.feed(part)]
        assert got == expected and stream.between
        assert [type(value) for value in got] == [type(value) for value in expected]
    one_by_one = RespStream(requests=requests)
    assert [value for n in range(len(data)) for value, _ in one_by_one.feed(data[n : n + 1])] == expected


def test_a_message_knows_when_it_began() -> None:
    stream = RespStream(requests=True)
    data = request("INCR", "a") + request("INCR", "b")
    assert stream.feed(data[:10], 5) == []
    assert [t for _, t in stream.feed(data[10:], 9)] == [5, 9]


@pytest.mark.parametrize(
    "data",
    [
        b"*2\r\n:1\r\n",
        b"*1\r\n$3\r\nabcde",
        b"*99999999\r\n",
        b"*1\r\n$9999999999\r\n",
        b"*x\r\n",
        b"*1\r\n$1a\r\n",
        b"a" * 5000,
        b"*1\r\n$--1\r\n",
    ],
)
def test_what_is_no_request(data: bytes) -> None:
    with pytest.raises(Garbage):
        RespStream(requests=True).feed(data)


@pytest.mark.parametrize(
    "data", [b"hello\r\n", b"*1\r\n" * 40, b"+" + b"a" * 5000, b"$1\r\nab\r\n", b"#x\r\n", b":\r\n", b"\r\n", b":1\n"]
)
def test_what_is_no_reply(data: bytes) -> None:
    with pytest.raises(Garbage):
        RespStream(requests=False).feed(data)


def test_long_texts_and_lists_are_skipped_without_being_kept() -> None:
    stream = RespStream(requests=False)
    ((value, _),) = stream.feed(b"*2\r\n$100000\r\n" + b"x" * 100_000 + b"\r\n:7\r\n")
    assert value[1] == 7 and isinstance(value[0], Cut) and len(value[0]) == KEPT_TEXT
    ((value, _),) = stream.feed(b"*1000\r\n" + b":1\r\n" * 1000)
    assert len(value) == KEPT_ITEMS and stream.between


def test_what_is_missing_inside_a_text_costs_that_text_only() -> None:
    stream = RespStream(requests=False)
    assert stream.feed(b"$1000\r\n" + b"x" * 300) == []
    assert stream.missing(500) and not stream.missing(500)
    assert stream.feed(b"x" * 200 + b"\r\n:3\r\n")[1][0] == 3


def test_hostile_bytes_do_no_harm() -> None:
    counts = attack(4_001)
    assert counts["garbage"] > 100 and counts["messages"] > 100
