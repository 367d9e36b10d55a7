"""What kombu keeps in Redis, also where it is malformed."""

from __future__ import annotations

import json
import random
import re
import socket
import time
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from agent.queues import kombu
from agent.queues.brokers.celery import MAX_QUEUES, CeleryQueues, CeleryServer
from agent.queues.celery_control import MAX_WORKERS, PATIENCE_NS, CeleryWorker, ControlBus
from agent.queues.judged import Judged
from agent.queues.packing import TABLE, pack
from tests.hostile import serving
from tests.unit.kombu_pieces import attack
from tests.unit.test_hostile_redis import values

SEP = kombu.SEPARATOR
#: As kombu 5.7 stores them, and as older releases stored a pattern with ``*``.
MEMBERS = {
    b"mail": [(b"mail", b"", b"mail"), (b"", b"", b"rest")],
    b"topics": [
        (b"orders.*", rb"^orders\.[^\.]+$", b"one"),
        (b"orders.#", rb"^orders\..*?$", b"any"),
        (b"#", b"^.*?$", b"all"),
        (b"orders.eu", rb"^orders\.eu$", b"eu"),
        (b"*.*.x", rb"^[^\.]+\.[^\.]+\.x$", b"x"),
    ],
    b"old": [(b"orders.*", rb"^orders\..*?[^\.]$", b"one")],
}
BINDINGS = {
    exchange: [found for one in members if (found := kombu.binding(SEP.join(one))) is not None]
    for exchange, members in MEMBERS.items()
}


@pytest.mark.parametrize(
    ("exchange", "key", "queues"),
    [
        (b"", b"celery", (b"celery",)),
        (b"mail", b"mail", (b"mail",)),
        (b"mail", b"post", ()),
        (b"gone", b"mail", ()),
        (b"topics", b"orders.eu", (b"all", b"any", b"eu", b"one")),  # each gets a copy
        (b"topics", b"orders.us", (b"all", b"any", b"one")),
        (b"topics", b"orders", (b"all",)),
        (b"topics", b"orders.", (b"all", b"any")),
        (b"topics", b"orders.us.x", (b"all", b"any", b"x")),
        (b"topics", b".".join([b"w"] * 1000), ()),
        (b"old", b"orders.us", (b"one",)),
        (b"old", b"orders.us.x", (b"one",)),
        (b"old", b"orders.us.", ()),
        (b"old", b"orders", ()),
    ],
)
def test_the_queues_of_a_message(exchange: bytes, key: bytes, queues: tuple[bytes, ...]) -> None:
    assert kombu.routed(exchange, key, BINDINGS) == queues


@pytest.mark.parametrize("pattern", ["a.*", "a.#", "#", "*.b", "a.#.c", "a.b", "", "#.*", "a+.*", "*"])
def test_a_pattern_fits_what_kombu_delivers(pattern: str) -> None:
    """kombu itself decides, by the regular expression that it stores."""
    from kombu.transport.virtual.exchange import TopicExchange

    topic = TopicExchange(None)
    stored = topic.key_to_pattern(pattern)
    bound = kombu.Binding(pattern.encode(), b"q", stored.encode())
    for key in ("", "a", "b", "a.", "a.b", "a.b.c", "a..c", ".b", "a+.b", "aa.b", "a.b.b.c", "."):
        assert bound.fits(key.encode()) == bool(topic._match(stored, key)), key


def test_a_pattern_with_many_wildcards_takes_no_time() -> None:
    bound = kombu.Binding(b".".join([b"#", b"a"] * 31 + [b"b"]), b"q", b"^")
    assert kombu.routed(b"e", b".".join([b"a"] * 64), {b"e": [bound]}) == ()


@pytest.mark.parametrize(
    ("headers", "delivery", "eta_s", "redelivered"),
    [
        ({"eta": None}, {}, None, False),
        ({"eta": "2026-01-01T00:00:00+00:00"}, {"redelivered": False}, 1767225600, False),
        ({"eta": "2026-01-01T02:00:00+02:00"}, {"redelivered": True}, 1767225600, True),
        ({"eta": "2026-01-01T00:00:00"}, {}, 1767225600, False),
        ({"redelivered": True}, None, None, True),
        (None, None, None, False),
    ],
)
def test_a_message(headers: object, delivery: object, eta_s: float | None, redelivered: bool) -> None:
    content = {"headers": headers, "properties": {"delivery_info": delivery}}
    found = kombu.message(json.dumps([content, "", "celery"]).encode())
    assert found == kombu.KombuMessage(b"", b"celery", eta_s, redelivered)


@pytest.mark.parametrize(
    ("body", "eta_s"),
    [
        (b'{"task": "a", "eta": "2026-01-01T00:00:00"}', 1767225600),
        (b'{"task": "a", "eta": null}', None),
        (b"\x80\x04pickle", None),
        (b"[" * 100_000, None),
        (b"[]", None),
    ],
)
def test_the_set_time_of_the_first_protocol(body: bytes, eta_s: float | None) -> None:
    content = {"body": b64encode(body).decode(), "headers": {}, "properties": {"body_encoding": "base64"}}
    assert kombu.message(json.dumps([content, "", "a"]).encode()) == kombu.KombuMessage(b"", b"a", eta_s)


@pytest.mark.parametrize("protocol", [1, 2])
@pytest.mark.parametrize(
    "settings",
    [{}, {"timezone": "Asia/Tokyo"}, {"enable_utc": False, "timezone": "Asia/Tokyo"}, {"enable_utc": False}],
)
@pytest.mark.parametrize(
    "options", [{"eta": datetime(2031, 1, 2, 3)}, {"eta": datetime(2031, 1, 2, 3, tzinfo=UTC)}, {"countdown": 7000}]
)
def test_a_set_time_is_when_a_worker_begins(options: Any, settings: Any, protocol: int) -> None:
    """Celery itself sends the message, and reads it as a worker does."""
    from celery import Celery
    from celery.worker.request import Request
    from celery.worker.strategy import proto1_to_proto2
    from kombu.asynchronous.timer import to_timestamp

    app = Celery(broker="memory://")
    app.conf.update(settings, task_protocol=protocol)

    @app.task(name="t")
    def task() -> None: ...

    with app.connection_for_write() as connection, connection.SimpleQueue(f"q{protocol}") as queue:
        app.send_task("t", queue=queue.queue.name, connection=connection, **options)
        sent = queue.get(timeout=9)
        first = dict(zip(("body", "headers", "decoded"), proto1_to_proto2(sent, sent.payload))) if protocol == 1 else {}
        begins_s = to_timestamp(Request(sent, app=app, task=task, **first).eta, app.timezone, time.time)
        content = {
            "body": b64encode(sent.body).decode(),
            "headers": sent.headers,
            "properties": {"body_encoding": "base64"},
        }
        sent.ack()
    found = kombu.message(json.dumps([content, "", "a"]).encode())
    assert found is not None
    assert found.eta_s == pytest.approx(begins_s, abs=0.01)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":1}',
        b"[1,2,3]",
        b'[{}, 7, "a"]',
        b'[{"headers":{"eta":"soon"}},"","a"]',
        b'[{"headers":{"eta":"9999-12-31T23:59:59-23:59"}},"","a"]',
        b"9" * 5000,
        b'[{},"\\ud800",null]',
    ],
)
def test_what_is_no_message_is_refused_or_harmless(value: bytes) -> None:
    found = kombu.message(value)
    assert found is None or found == kombu.KombuMessage(b"?", b"") or found.eta_s is not None


@pytest.mark.parametrize(
    ("query", "channel"),
    [
        ("", b"/3.celery.pidbox"),
        ("&prefix=p-", b"p-/3.celery.pidbox"),
        ("&fanout_prefix=true", b"/3.celery.pidbox"),
        ("&fanout_prefix=False", b"celery.pidbox"),
        ("&fanout_prefix=/mine/{db}.&control_exchange=shop", b"/mine/3.shop.pidbox"),
    ],
)
def test_the_channel_of_the_control_bus(query: str, channel: bytes) -> None:
    bus = CeleryQueues(CeleryServer.parse(f"redis://h/3?workers=true{query}"))._bus
    assert bus is not None
    assert {command[1] for command in bus.commands(1) if command[0] == "PUBLISH"} == {channel}


@pytest.mark.parametrize(
    ("queues", "delayed", "limit"),
    [
        ({"w1": "ab", "w2": "ab", "w3": "c"}, None, {"prefetch": 7, "beside": 2}),
        ({"w1": "a", "w2": "a", "w3": "b"}, None, {"prefetch": 7, "beside": 0}),
        # w1 may also hold messages of b, but which of them is not known
        ({"w1": "ab", "w2": "a", "w3": "b"}, None, {"prefetch": 7, "beside": 0}),
        ({"w1": "ab", "w2": "ab", "w3": "b"}, None, {"prefetch": 7, "beside": 0}),
        ({"w1": "ab", "w2": "a"}, None, {"prefetch": 7, "beside": 2}),  # those of b are of w1
        ({"w1": "a", "w2": "c"}, None, {"prefetch": 4, "beside": 0}),  # nobody reads b now
        ({"w1": "ax"}, None, {"prefetch": 4, "beside": 0}),  # a queue that is not watched
        ({"w1": "ab"}, "a", {}),
        ({"w1": "ab", "w2": "b"}, "b", {}),  # w1 may hold those with a set time
        ({"w1": "ax"}, "x", {}),
        ({"w1": "a", "w2": "bx"}, "x", {"prefetch": 4, "beside": 0}),
        ({"w1": "a"}, "", {}),  # of an exchange whose bindings were not read yet
        ({"w3": "b"}, None, {}),
    ],
)
def test_the_limit_of_workers_with_several_queues(queues: dict[str, str], delayed: str | None, limit: Any) -> None:
    """delayed: the queue of a message with a set time."""
    source = CeleryQueues(CeleryServer.parse("redis://h?workers=true"))
    assert source._bus is not None
    source._bus.workers = {
        name: CeleryWorker(name, frozenset(its), prefetch={"w1": 4, "w2": 3}.get(name, 5))
        for name, its in queues.items()
    }
    source._queues = {name: source._new(name) for name in (b"a", b"b", b"c")}
    source._queues[b"b"].mine = {(b"1", 0.0): kombu.KombuMessage(b"", b"b"), (b"2", 0.0): kombu.KombuMessage(b"", b"b")}
    source._queues[b"a"].mine = {(b"3", 0.0): kombu.KombuMessage(b"", b"a")}
    if delayed is not None:
        one = kombu.KombuMessage(b"" if delayed else b"topics", delayed.encode(), 9.0)
        source._messages = {(b"4", 0.0): one}
    source._bus.listening, source._limits = len(queues), source._worker_limits()
    row = source._consumers(source._queues[b"a"])
    assert {name: row[name] for name in ("prefetch", "beside") if name in row} == limit


def test_each_of_many_workers_reads_all_of_many_queues() -> None:
    source = CeleryQueues(CeleryServer.parse("redis://h?workers=true"))
    assert source._bus is not None
    names = [f"queue {n}" for n in range(MAX_QUEUES)]
    source._bus.workers = {f"w{n}@h": CeleryWorker(f"w{n}@h", frozenset(names), n, 4) for n in range(MAX_WORKERS)}
    source._bus.listening = MAX_WORKERS
    source._queues = {name.encode(): source._new(name.encode()) for name in names}
    source._limits = source._worker_limits()
    rows = [source._consumers(queue) for queue in source._queues.values()]
    assert all(row["prefetch"] == 4 * MAX_WORKERS for row in rows)


class Trap:
    def __reduce__(self) -> Any:
        return pytest.fail, ("a reply was unpickled",)


def test_a_pickled_reply_is_not_read() -> None:
    from kombu.serialization import dumps

    kind, encoding, body = dumps({"w@a": Trap()}, "pickle")
    headers = {"ticket": "stats"}
    reply = {"body": b64encode(body).decode(), "content-type": kind, "content-encoding": encoding, "headers": headers}
    bus = asked(3, [b"", json.dumps(reply).encode()])
    assert (bus.workers, bus.foreign, bus.missing, bus.complete) == ({}, 1, 2, False)
    assert bus.kind == "application/x-python-serialize"


def asked(listening: int, replies: list[bytes]) -> ControlBus:
    bus = ControlBus(b"", "/0.celery.pidbox")
    bus.take([listening for _ in bus.commands(1)])
    bus.commands(1 + PATIENCE_NS)
    bus.take([replies])
    return bus


def test_the_kind_of_a_reply_has_no_control_characters() -> None:
    reply = {"body": "", "content-type": "a\x1b[2J\x07", "headers": {"ticket": "stats"}}
    assert asked(1, [json.dumps(reply).encode()]).kind == r"a\x1b[2J\x07"


def test_the_remedy_for_a_deaf_control_bus_can_be_pasted() -> None:
    source = CeleryQueues(CeleryServer.parse("redis://h?workers=true"))
    assert source._bus is not None
    source._bus._asked_ns, source._bus._unheard = 0, 2
    source._ask_workers(1)
    (why,) = source._problems
    assert len(why) <= 128
    (option,) = re.findall(r"\?(fanout_prefix=\w*)", why)
    bus = CeleryQueues(CeleryServer.parse(f"redis://h?workers=true&{option}"))._bus
    assert bus is not None and bus._channel == b"celery.pidbox"


def test_damaged_data_raise_nothing() -> None:
    counts = attack(5_000)
    assert all(0 < counts[name] < 5_000 for name in ("messages", "bindings", "routed", "tasks")), counts


def test_only_queues_with_tasks_are_bound() -> None:
    members = [b"celery\x06\x16\x06\x16celery", b"\x06\x16\x06\x16bcast.1", b"celery", b"a\x06\x16\x06\x16", b""]
    assert [kombu.binding(one) for one in members] == [kombu.Binding(b"celery", b"celery"), None, None, None, None]
    assert [kombu.carries_tasks(one) for one in (b"celery", b"celeryev", b"celery.pidbox", b"reply.celery.pidbox")] == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize("start", range(7, 10))  # not `seed`, of which CI has one only
def test_a_server_that_answers_anything_is_a_row(start: int) -> None:
    """Each command has a random reply."""
    rng = random.Random(start)

    def answers(connection: socket.socket) -> None:
        while data := connection.recv(1 << 20):
            for line in data.split(b"\r\n*"):
                name = line.split(b"\r\n")[2 if line.startswith(b"*") or line[:1].isdigit() else 1]
                if name == b"CLIENT":
                    connection.sendall(b"+OK\r\n")
                elif name == b"SCAN" and rng.random() < 0.9:
                    connection.sendall(b"*2\r\n$1\r\n0\r\n*1\r\n$21\r\n_kombu.binding.celery\r\n")
                elif name == b"SSCAN" and rng.random() < 0.9:
                    connection.sendall(b"*2\r\n$1\r\n0\r\n*1\r\n$16\r\ncelery\x06\x16\x06\x16celery\r\n")
                elif name in (b"LLEN", b"ZCARD") and rng.random() < 0.97:
                    connection.sendall(b":%d\r\n" % rng.randrange(3))
                else:
                    connection.sendall(b"".join(values(rng)))

    with serving(answers) as port:
        queue = Judged("celery", CeleryQueues(CeleryServer.parse(f"redis://127.0.0.1:{port}"), 5))
        for _ in range(100):
            rows = np.frombuffer(pack(queue.poll()), TABLE.dtype)
            assert len(rows) >= 1
        queue.close()


def test_a_server_that_still_loads_its_data_is_down() -> None:
    def answers(connection: socket.socket) -> None:
        while data := connection.recv(1 << 20):
            sent = data.count(b"\r\n*") + 1
            connection.sendall(b"-LOADING Redis is loading the dataset in memory\r\n" * sent)

    with serving(answers) as port:
        for options in ("", "?queues=celery"):
            queue = CeleryQueues(CeleryServer.parse(f"redis://127.0.0.1:{port}/{options}"), 5)
            (row,) = queue.poll()
            queue.close()
            assert row["status"] == "down"
            assert "LOADING" in str(row["reason"])
