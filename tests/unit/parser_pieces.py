"""Hostile inputs for the parsers of limiters and brokers that are nobody else's: ``python -m
tests.unit.parser_pieces [INPUTS] [NAME...]`` tries a million of each.

What comes over connections has its own: redis_pieces.py (RESP, records of the kernel), otlp_pieces.py (OTLP).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any

from agent.arch import x86_code
from agent.arch.registers import GO, SYSTEM_V
from agent.binaries import gobuild, gofacts, gopcln, openssl, ownfunction
from agent.binaries.elf import Elf, ElfError
from agent.binaries.symbolnames import pattern, plain
from agent.binaries.symbols import nearest
from agent.binaries.unwind import function_at
from agent.common import settings as sections
from agent.common.settings_file import parse as settings_file
from agent.errors import AgentError
from agent.limiters.decision import FLOATS, INTEGERS, Decoder
from agent.limiters.functions import meanings, settings
from agent.limiters.functions.words import WordError
from agent.limiters.functions.words import parse as word
from agent.limiters.model_settings import Declared
from agent.limiters.redis_settings import RedisLimiterSettings, ScriptSettings
from agent.limiters.script import RedisCall, expression
from agent.limiters.settings import LimiterSettings
from agent.queues import mapping, timers
from agent.queues.brokers.etcd import EtcdQueues, EtcdUrl
from agent.queues.brokers.nats import NatsConsumers, NatsUrl
from agent.queues.brokers.rabbitmq import RabbitQueues, RabbitUrl
from agent.queues.judged import Judged
from agent.queues.packing import pack
from agent.queues.postgresql_jobs import COUNTS, DUE, TEXTS, TIMES, JobQueues
from agent.queues.postgresql_wal import WalReaders
from agent.queues.prometheus_text import NotPrometheus
from agent.queues.rabbitmq_management import about_queues, amqp_port, blocked, queue_consumers, unlimited
from tests.unit.hostile_elf import many_returns

_STRANGE: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1 << 63,
    1 << 70,
    -1.5,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "\0",
    "ü",
    "\ud800",
    "x" * 600,
    [],
    {},
    [1, [2]],
    {"a": {"b": 1}},
    "..",
    "1..0",
    "..-1",
    "other",
]
_WORDS = [
    "ax",
    "rdi",
    "edi",
    "di+24",
    "(ax+8)+16",
    "limiter+8",
    "sp+8",
    "xmm0",
    "i32",
    "f64",
    "bool",
    "int",
    "ms",
    "s",
    "+",
    "(",
    ")",
    "reply.0",
    "arg.1",
    "key.99",
    "match.0",
    ">",
    "==",
    "/",
    "-",
    "-0",
    "1e9",
    "99999",
    "4096",
    "eax+ 4095",
]
_CODE = bytes.fromhex(
    "493b6610760a554889e54883ec10488944242048895c2428f0480fb10d00000000e800000000eb0cc3c5f8778b0424ff24c500000000f30f1efa3effe0c3"
)


def mutated(rng: random.Random, data: bytes, most: int = 4) -> bytes:
    raw = bytearray(data)
    for _ in range(rng.randint(1, most)):
        at = rng.randrange(len(raw) + 1)
        match rng.randrange(5):
            case 0 if at < len(raw):
                raw[at] = rng.randrange(256)
            case 1:
                raw[at:at] = rng.randbytes(rng.randint(1, 9))
            case 2:
                del raw[at : at + rng.randint(1, 9)]
            case 3:
                del raw[at:]
            case _:
                raw[at:at] = raw[at : at + rng.randrange(32)]
    return bytes(raw)


def value(rng: random.Random) -> Any:
    return rng.choice(_STRANGE) if rng.random() < 0.3 else " ".join(rng.choices(_WORDS, k=rng.choice((1, 1, 2, 3))))


def section(rng: random.Random, keys: Sequence[str], most: int = 5) -> dict[str, Any]:
    return {key: value(rng) for key in rng.sample([*keys, "unknown"], rng.randint(1, min(len(keys), most)))}


def message(rng: random.Random) -> None:
    given = {
        "limiter": "a",
        "result": "allowed",
        "key": "k",
        **dict.fromkeys(FLOATS, 1.5),
        **dict.fromkeys(INTEGERS, 7),
    }
    given |= section(rng, ["limiter", "result", "key", "t_ns", "trace_id", "library", "dropped", *FLOATS, *INTEGERS], 2)
    if rng.random() < 0.5:
        given |= {name: rng.choice([0, 3, 2.5, 1 << 40]) for name in given if name not in ("limiter", "result")}
    data = b"<190>Nov 23 10:11:12 host nginx: " * rng.randrange(2) + json.dumps(given).encode()
    _decoder().parse(mutated(rng, data) if rng.random() < 0.5 else data)


@cache
def _decoder() -> Decoder:
    return Decoder("hashed")


def places(rng: random.Random) -> None:
    text = " ".join(
        (rng.choice(("i32", "f64", "bool", "int", "")), rng.choice(_WORDS[:9]), rng.choice(("ms", "s", "")))
    )
    text = mutated(rng, text.encode()).decode("latin-1") if rng.random() < 0.4 else text
    word(value(rng) if rng.random() < 0.2 else text, rng.choice((GO, SYSTEM_V)), rng.random() < 0.5, rng.random() < 0.7)


def values(rng: random.Random) -> None:
    terms = ("reply", "reply.0", "reply.99", "arg.1", "key.0", "match.1", "match.0", "-1.5", "1", "999999999999999")
    text = rng.choice(terms)
    if rng.random() < 0.7:
        text = f"{text} {rng.choice(('>', '<=', '==', '-', '/', '*', '**'))} {rng.choice(terms)}"
    term = expression(mutated(rng, text.encode()).decode("latin-1") if rng.random() < 0.4 else text, rng.random() < 0.3)
    reply = rng.choice([*_STRANGE, [b"1", None, [2]], b"7", 3])
    term(RedisCall("EVAL", "", [b"k"] * rng.randrange(3), [rng.randbytes(3), b"1e999"], reply))


def answers(rng: random.Random) -> None:
    good: list[Any] = [0, 1, 7, "2..5", "..-1", "9..", [3, "4..6"], "other"]
    given = {
        name: rng.choice(good) if rng.random() < 0.8 else rng.choices(_STRANGE, k=3)
        for name in rng.sample(list(meanings.CODES), 2)
    }
    meanings.parse(given)


def functions(rng: random.Random) -> None:
    """What is wrong with one is kept beside it; ``limiter_functions`` that are no list are refused."""
    one: dict[str, Any] = {
        "name": "a",
        "program": "/bin/a",
        "language": rng.choice(["go", "c"]),
        "symbol": "f",
        "results": {"result": "bool ax"},
    }
    if rng.random() < 0.6:
        one |= section(
            rng,
            [
                "name",
                "program",
                "build_id",
                "language",
                "symbol",
                "address",
                "offset",
                "algorithm",
                "clock",
                "window",
                "limit",
                "per_s",
                "burst",
                "slots",
                "arguments",
                "results",
            ],
            2,
        )
    for part, keys in (
        ("arguments", ["limiter", "key", "key_size", "cost", "limit", "now"]),
        ("results", ["result", "wait", "error", "remaining", "allowed", "refused"]),
    ):
        if rng.random() < 0.3:
            one[part] = section(rng, keys, 2)
    kept = settings.entries(rng.choice([[one], [one], [one, one], one, "x"]), sections.TOP)
    settings.replayed(settings.functions(kept))
    if kept[0].wrong:
        raise AgentError(kept[0].wrong)


def scripts(rng: random.Random) -> None:
    one = {"command": "CL.X", "key": "a:", "allowed": "reply.0 == 1", "limit": "arg.0"}
    given = {**one, **section(rng, list(sections.keys(ScriptSettings)), 2)} if rng.random() < 0.9 else value(rng)
    sections.read(RedisLimiterSettings, {"redis_limiter_scripts": {"a": given}}).own()


def models(rng: random.Random) -> None:
    one = {"model": "GCRA", "clock": "wall", "per_s": 5, "burst": 2.5, "window": "1s", "slots": 3, "shared": True}
    given = {**one, **section(rng, list(sections.keys(Declared)), 2)} if rng.random() < 0.9 else value(rng)
    sections.read(LimiterSettings, {"limiter_models": {"a*": given}})


_YAML = (
    b"limiter_functions:\n  - name: a  # x\n    arguments: {limiter: ax, key: 'si'}\n    allowed: [1,"
    b' 2..3]\nlimiter_names:\n  "a*": b\n'
)


def yaml(rng: random.Random) -> None:
    text = mutated(rng, _YAML, 8).decode("utf-8", "replace")
    settings_file(
        Path("t.yaml"),
        text + rng.choice(["", "\n&a [*a]", "[" * 50, "\n? [a]\n: 1", "\n? {a: 1}\n: 1", "\n!!python/object:x {}"]),
    )


def code(rng: random.Random) -> None:
    data = rng.randbytes(rng.randint(1, 40)) if rng.random() < 0.3 else mutated(rng, _CODE)
    for read in (x86_code.return_offsets, x86_code.lock_offset, x86_code.stack_check):
        with suppress(ElfError):
            read(data.ljust(16, b"\x90"))
    x86_code.instructions(data)


def tables(rng: random.Random) -> None:
    with suppress(ElfError):
        gopcln.pc_values(mutated(rng, bytes((2, 4, 1, 8, 130, 1, 3, 0))), rng.choice((1, 4)), rng.randrange(1 << 20))
    with suppress(ElfError):
        gopcln.parse_func(rng.randbytes(rng.randrange(60)), rng.choice((4, 8)))
    header = rng.choice(gopcln.magics(1)) + b"".join(
        rng.choice((1, 80, 200, 1 << 20, 1 << 63)).to_bytes(8, "little") for _ in range(8)
    )
    gopcln.parse(mutated(rng, header) if rng.random() < 0.5 else header, rng.choice((300, 1 << 20)))


def build(rng: random.Random) -> None:
    text = b"0" * 16 + b"path\ta\nmod\ta\tv1\ndep\tb\tv2\th\n=>\tc\tv3\n" + b"1" * 16
    gobuild.parse(*gobuild.inline_strings(mutated(rng, bytes((5,)) + b"go1.2" + bytes((len(text),)) + text)))


def names(rng: random.Random) -> None:
    text = "".join(rng.choices("shop::Window<int>(){}[]&*~ operator,_ZN4RZv0-9ü\1\2", k=rng.randint(1, 30)))
    with suppress(ValueError):
        pattern(text, rng.choice(("c", "c++", "rust"))).search(b"_ZN4shop6Window3incEv\0")
    plain(mutated(rng, b"_ZN4shop6Window3incEv").decode("latin-1"))
    nearest(text, {"shop::inc": "a", "inc": "b"})


_SOURCE = (
    "#include <string.h>\nint left;\nint allow(const char *k, int n) { if (strlen(k) + n > (unsigned)left) return 0;"
    ' left -= n; return 1; }\nint outer(int n) { return allow("a", n); }\n'
)
_ASKED = {
    "library": "own:a",
    "entry": "e",
    "left": "l",
    "returned": "r",
    "address": None,
    "offset": None,
    "build_id": "",
    "mapped": True,
}


@cache
def _library() -> bytes:
    with tempfile.TemporaryDirectory() as here:
        out = Path(here) / "a.so"
        subprocess.run(
            ["gcc", "-O1", "-s", "-fPIC", "-shared", "-nostartfiles", "-x", "c", "-", "-o", out],
            input=_SOURCE,
            text=True,
            check=True,
        )
        return out.read_bytes()


class _File:
    """In memory; what was changed of it is put back."""

    def __init__(self, content: bytes) -> None:
        self.content, self.fd = content, os.memfd_create("hostile")
        self.output = [at for at, byte in enumerate(content) if byte]  # all else is mostly padding
        os.write(self.fd, content)

    def changed(self, rng: random.Random) -> int:
        """Headers above all; sometimes it is cut off."""
        os.ftruncate(self.fd, len(self.content))
        os.pwrite(self.fd, self.content, 0)
        for _ in range(rng.choice((1, 1, 3, 20))):
            at = rng.choice((rng.randrange(0x200), rng.choice(self.output), rng.choice(self.output)))
            os.pwrite(
                self.fd,
                rng.choice(
                    (
                        b"\xff" * 8,
                        bytes(8),
                        rng.randbytes(8),
                        rng.randbytes(1),
                        (1 << rng.randrange(64)).to_bytes(8, "little"),
                    )
                ),
                at,
            )
        if rng.random() < 0.1:
            os.ftruncate(self.fd, rng.randrange(len(self.content)))
        return self.fd


@cache
def _file(which: str) -> _File:
    return _File(_library() if which == "elf" else many_returns(64))


def elf(rng: random.Random) -> None:
    fd = _file("elf").changed(rng)
    with suppress(ElfError):
        openssl.facts([fd], program=rng.random() < 0.5)
    one = {**_ASKED, "symbol": rng.choice(("allow", "outer", "nothing")), "language": rng.choice(("c", "c++", "rust"))}
    found = ownfunction.analyze(
        fd,
        [one if rng.random() < 0.5 else {**one, "symbol": "", "address": rng.randrange(0x3000)}],
        near=rng.random() < 0.1,
    )
    opened = Elf(fd)
    function_at(opened, rng.randrange(0x3000))
    opened.symbols([b"strlen", b"left"])
    if found and found[0][0].state == "unavailable":
        raise ElfError(found[0][0].reason)


def go(rng: random.Random) -> None:
    gofacts.resolver(_file("go").changed(rng))
    found = gofacts.analyze(_file("go").changed(rng))
    if found and found.probed and found.probed[0].state == "unavailable":
        raise ElfError(found.probed[0].reason)


_METRICS = (
    b"# TYPE rabbitmq_detailed_queue_messages_ready gauge\n# HELP rabbitmq_detailed_queue_messages_ready Messages\n",
    b'rabbitmq_detailed_queue_messages_ready{vhost="/",queue="orders"} 17\n',
    b'rabbitmq_detailed_queue_messages_unacked{vhost="/",queue="q\\"\\\\\\n"} 1.7e3 1395066363000\n',
    b'rabbitmq_detailed_channel_messages_acked_total{channel="<0.1.0>",vhost="/",queue="orders"} 5\n',
    b'rabbitmq_detailed_queue_messages_published_total{channel="<0.1.0>",queue_vhost="/",queue="orders"} 9\n',
    b'rabbitmq_detailed_queue_info{vhost="/",queue="s",queue_type="rabbit_stream_queue"} 1\n',
    b'rabbitmq_detailed_queue_head_message_timestamp{vhost="/",queue="orders"} 1700000000\n',
    b'rabbitmq_identity_info{rabbitmq_cluster="shop",rabbitmq_cluster_permanent_id="7"} 1\n',
    b'rabbitmq_detailed_queues_deleted_total{node="a"} 3\nrabbitmq_cluster_vhost_status{vhost="/"} 0\n',
    b"rabbitmq_detailed_process_resident_memory_bytes 1e99\nother -Inf\nother{} NaN\n\n",
)


def prometheus(rng: random.Random) -> None:
    """Three polls of one node; then its rows can be packed."""
    with closing(RabbitQueues(RabbitUrl("127.0.0.1", management=1))) as node:  # it is of a cluster until it is closed
        for t_ns in (1, 2, 9_000_000_000):
            text = b"".join(rng.choices(_METRICS, k=rng.randint(1, 9)))
            values, _ = node._read(mutated(rng, text) if rng.random() < 0.8 else text, t_ns)
            rows = [{**values, **row} for row in node._rows(t_ns)]
            _packed(rows)


_PAGE = (
    b"# TYPE q gauge\n",
    b'q{queue="a",shard="1"} 17\n',
    b'q{queue="b"} NaN\n',
    b"# TYPE d counter\n",
    b'd{queue="a"} 1e300\n',
    b'at{queue="a"} 1.7e9\n',
    b'{"a.b",queue="a","x.y"="1"} 5\n',
)
_VARS = (
    b'{"queues":{"a":{"len":3,"cap":1e9,"done":-1},"b":{"len":99999999999999999999,"cap":null}},"l":[{"len":1},[2]]}'
)
_MEMBERS = ("position", "added", "acked", "asked_s", "room")


def _packed(rows: Any) -> None:
    pack([{name: it for name, it in row.items() if name not in _MEMBERS} for row in rows])


def mapped(rng: random.Random) -> None:
    """An answer by a mapping; then its rows can be packed."""
    sources = ("q", 'q{shard="1"}', "d", "at", "none", '{"a.b"}')
    paths = ("/queues/*/len", "/queues/*/cap", "/*/*/done", "/l/0/len", "/l/*/*", "/")
    in_json = rng.random() < 0.5
    keys = ("length", "limit", "done", "oldest_at_s", "oldest_s", "pending")
    given = {key: mapping.MetricSource.parse(rng.choice(paths if in_json else sources)) for key in keys}
    one = mapping.MappedQueues(name=rng.choice(("a", "{queue}", "{1}", "{2}")), **given)  # type: ignore[arg-type]
    text = _VARS if in_json else b"".join(rng.choices(_PAGE, k=rng.randint(1, 9)))
    _packed(mapping.read([one], mutated(rng, text) if rng.random() < 0.8 else text, 1.7e9))


def selector(rng: random.Random) -> None:
    mapping.MetricSource.parse(
        mutated(rng, rng.choice((b'q{a="b",c="\\""}', b'{"a.b",c="d"}', b"/a/*/~1~0"))).decode("latin-1")
    )


def jobs(rng: random.Random) -> None:
    """Three answers of a query, with any values of the types that the server gives."""
    names = ["queue", "ready", *rng.sample([name for name in (*COUNTS, *TIMES, DUE, "holder") if name != "ready"], 3)]
    texts, counts = ("", "a", "ü" * 300), (None, 0, 1, -1, (1 << 63) - 1, -(1 << 63))
    times = (None, 0.0, -1.5, 1e300, float("inf"), float("nan"))
    queues = JobQueues()
    for _ in range(3):
        rows = [
            [f"queue {number}" if rng.random() < 0.95 else rng.choice((None, *texts))]
            + [rng.choice(texts if name in TEXTS else counts if name in COUNTS else times) for name in names[1:]]
            for number in range(rng.randrange(4))
        ]
        _packed(queues.rows(names, rows))
        pack(timers.rows("postgresql", "db", timers.ServerTimers(queues.timers), 1), "timer_effect")


def wal(rng: random.Random) -> None:
    """Three polls of a server's slots, with any values of their types."""
    readers = WalReaders()

    def whole() -> int | None:
        return rng.choice((None, 0, 5, 1 << 40, (1 << 63) - 1, -5))

    for t_ns in (1, 2, 90_000_000_000):
        states, whys, replies = ("reserved", "lost", ""), ("", "", "wal_removed", "x" * 99), (None, -1.0, 1e9)
        figures = whole(), whole(), whole(), rng.choice(whys), "app", "::1", rng.choice(replies), 1
        slots = [("s", "d", rng.randrange(2), rng.choice(states), *figures)] * rng.randrange(2)
        standbys = [("b" * 80, "", rng.randrange(2), whole(), None, 1) for _ in range(rng.randrange(2))]
        _packed(readers.rows(slots, standbys, (rng.randrange(2), whole(), 0, whole()), (t_ns, t_ns)))


_OVERVIEW = b'{"listeners":[{"protocol":"amqp","port":5672},{"protocol":"amqp/ssl","port":5671}]}'
_QUEUES = (
    b'[{"vhost":"/","name":"a","type":"classic","arguments":{"x-message-ttl":5,"x-dead-letter-exchange":""},'
    b'"effective_policy_definition":[]},{"vhost":"/","name":"b","type":"stream"}]'
)


_CONSUMERS = (
    b'[{"queue": {"vhost": "/", "name": "q"}, "prefetch_count": 0, "ack_required": true,'
    b' "channel_details": {"name": "a", "peer_host": "10.0.0.1", "peer_port": 5}}]'
)
_CHANNELS = b'[{"name": "a", "global_prefetch_count": 3, "state": "blocked"}]'


def management(rng: random.Random) -> None:
    amqp_port(json.loads(mutated(rng, _OVERVIEW, 2)))
    about_queues(json.loads(mutated(rng, _QUEUES, 2)))


def _replaced(rng: random.Random, given: Any) -> Any:
    """The same, with some parts replaced by other values."""
    if rng.random() < 0.1:
        return rng.choice([None, True, -1, 0, 1 << 60, 0.5, "", "a" * 70, "\ud800", [], {}, [given], {"name": given}])
    if isinstance(given, dict):
        return {name: _replaced(rng, its) for name, its in given.items()}
    return [_replaced(rng, its) for its in given] if isinstance(given, list) else given


def consumers(rng: random.Random) -> None:
    given, channels = _replaced(rng, json.loads(_CONSUMERS)), _replaced(rng, json.loads(_CHANNELS))
    unlimited(given)
    queue_consumers(given, channels)
    blocked(channels)


class Canned:
    """In place of an HTTP client: the answers of a server, by the beginning of the path."""

    peer = "127.0.0.1", 1

    def __init__(self, answers: dict[str, bytes]) -> None:
        self.answers = answers

    def get(self, path: str, *_: Any, **__: Any) -> bytes:
        return next(answer for name, answer in self.answers.items() if path.startswith(name))

    def close(self) -> None:
        """There is nothing to close."""


def changed(rng: random.Random, given: Any) -> Any:
    """A copy of a JSON document with some of its values replaced, or left out."""
    if isinstance(given, dict):
        kept = [(key, it) for key, it in given.items() if rng.random() > 0.01]
        return {key: changed(rng, it) for key, it in kept}
    if isinstance(given, list):
        return [changed(rng, it) for it in given for _ in range(rng.choice((1, 1, 1, 1, 0, 2)))]
    if rng.random() < 0.9:
        return given
    return rng.choice([*_STRANGE, *([rng.randrange(20)] * 40 if isinstance(given, int) else [])])


NATS_VARZ: dict[str, Any] = {
    "server_id": "A",
    "server_name": "n1",
    "port": 4222,
    "mem": 1 << 20,
    "connections": 3,
    "max_connections": 65536,
    "cluster": {},
}
NATS_JSZ: dict[str, Any] = {
    "server_id": "A",
    "now": "2026-11-26T14:29:47.546155223Z",
    "config": {"domain": ""},
    "account_details": [
        {
            "name": "$G",
            "stream_detail": [
                {
                    "name": "ORD",
                    "cluster": {"leader": "n1"},
                    "config": {"retention": "limits", "max_age": 3_600_000_000_000},
                    "state": {
                        "messages": 17,
                        "first_seq": 1,
                        "first_ts": "2026-11-26T14:28:47.49Z",
                        "last_seq": 17,
                        "last_ts": "2026-11-26T14:29:47.4Z",
                    },
                    "consumer_detail": [
                        {
                            "name": "bill",
                            "config": {"durable_name": "bill", "max_ack_pending": 1000},
                            "delivered": {"consumer_seq": 5, "stream_seq": 5, "last_active": "2026-11-26T14:29:40Z"},
                            "ack_floor": {"consumer_seq": 2, "stream_seq": 2},
                            "num_ack_pending": 3,
                            "num_redelivered": 0,
                            "num_waiting": 0,
                            "num_pending": 12,
                        }
                    ],
                }
            ],
        }
    ],
}


def polled(rng: random.Random, queue: Any, documents: dict[str, Any]) -> None:
    """Three polls of one source. Raises ValueError if each of them is refused."""
    judged, refused = Judged("any", queue), 0
    for _ in range(3):
        answers = {path: json.dumps(changed(rng, it)).encode() for path, it in documents.items()}
        if rng.random() < 0.3:
            answers = {path: mutated(rng, it) for path, it in answers.items()}
        queue._client, queue._not_before_ns = Canned(answers), 0
        rows = judged.poll()
        pack(rows)
        pack(judged.timers(), "timer_effect")
        lags = [row.get("lag_messages") for row in rows]
        assert rows and all(lag is None or (isinstance(lag, int) and lag >= 0) for lag in lags), rows
        refused += any(row.get("failure") for row in rows)
    if refused == 3:
        raise ValueError


def nats(rng: random.Random) -> None:
    answers = {"/varz": NATS_VARZ, "/jsz": NATS_JSZ, "/healthz": {"status": "ok"}}
    polled(rng, NatsConsumers(NatsUrl("127.0.0.1")), answers)


ETCD_METRICS = (
    b"# TYPE etcd_server_proposals_pending gauge\netcd_server_proposals_pending 3\n",
    b"etcd_debugging_mvcc_pending_events_total 128\netcd_debugging_mvcc_slow_watcher_total 1\n",
    b"etcd_debugging_mvcc_watcher_total 2\netcd_server_quota_backend_bytes 2.147483648e+09\n",
    b'process_resident_memory_bytes 2.7e+07\ngrpc_server_started_total{grpc_method="Put"} 0\n',
    b"etcd_server_proposals_pending NaN\n",
)
_HEADER = {
    "cluster_id": "12101053776118486841",
    "member_id": "15985099378392235387",
    "revision": "20",
    "raft_term": "2",
}
ETCD_STATUS: dict[str, Any] = {
    "header": _HEADER,
    "version": "3.4.23",
    "dbSize": "32768",
    "leader": "15985099378392235387",
    "raftIndex": "40",
    "raftTerm": "2",
    "raftAppliedIndex": "37",
    "errors": ["memberID:1 alarm:NOSPACE "],
}
ETCD_RANGE: dict[str, Any] = {
    "header": _HEADER,
    "kvs": [{"key": "YS9i", "mod_revision": "2", "value": "MQ=="}, {"key": "YS9j", "mod_revision": "7"}],
    "count": "2",
}


ETCD_LEASES: dict[str, Any] = {"header": _HEADER, "leases": [{"ID": "6884774683706575621"}, {"ID": "17"}]}
ETCD_LEASE: dict[str, Any] = {"header": _HEADER, "ID": "17", "TTL": "59", "grantedTTL": "60", "keys": ["L2xvY2tzL2E="]}


def etcd(rng: random.Random) -> None:
    """A member and a copy whose answers have nothing to do with each other."""
    queue = EtcdQueues(EtcdUrl.parse("http://127.0.0.1:1?prefix=a/&copy=http://127.0.0.2:1"))
    judged, refused = Judged("any", queue), 0
    assert queue._copy is not None
    for _ in range(4):
        documents = {"/v3/kv/range": ETCD_RANGE, "/v3/maintenance/status": ETCD_STATUS}
        documents |= {"/v3/lease/leases": ETCD_LEASES, "/v3/lease/timetolive": ETCD_LEASE}
        documents["/v3/cluster"] = {"members": [{"ID": "15985099378392235387", "name": "e1"}]}
        for member in (queue._members[0].client, queue._copy):
            answers = {path: json.dumps(changed(rng, it)).encode() for path, it in documents.items()}
            answers["/metrics"] = b"".join(rng.choices(ETCD_METRICS, k=4))
            if rng.random() < 0.3:
                answers = {path: mutated(rng, it) for path, it in answers.items()}
            member._client = Canned(answers)  # type: ignore[assignment]
        queue._members[0].not_before_ns = queue._compared[0]._next_ns = 0
        rows = judged.poll()
        pack(rows)
        pack(judged.timers(), "timer_effect")
        lags = [row.get("lag_messages") for row in rows]
        assert rows and all(lag is None or (isinstance(lag, int) and lag >= 0) for lag in lags), rows
        refused += rows[0].get("status") == "down"
    if refused == 4:
        raise ValueError


#: What each may say of an input, beside taking it.
PARSERS: dict[str, tuple[Callable[[random.Random], None], tuple[type[BaseException], ...]]] = {
    "message": (message, (ValueError, RecursionError)),
    "places": (places, (WordError,)),
    "values": (values, (ValueError,)),
    "answers": (answers, (ValueError,)),
    "functions": (functions, (AgentError,)),
    "scripts": (scripts, (AgentError,)),
    "models": (models, (AgentError,)),
    "yaml": (yaml, (AgentError,)),
    "prometheus": (prometheus, (NotPrometheus,)),
    "management": (management, (TypeError, ValueError, RecursionError)),
    "consumers": (consumers, (TypeError,)),
    "nats": (nats, (ValueError,)),
    "etcd": (etcd, (ValueError,)),
    "mapped": (mapped, (ValueError, RecursionError)),
    "selector": (selector, (ValueError,)),
    "jobs": (jobs, ()),
    "wal": (wal, ()),
    "code": (code, (ElfError,)),
    "tables": (tables, (ElfError,)),
    "build": (build, ()),
    "names": (names, ()),
    "elf": (elf, (ElfError, OSError)),
    "go": (go, (ElfError, OSError)),
}


def attack(name: str, inputs: int, seed: int = 1) -> Counter[str]:
    """How many were taken, and refused with a reason. Anything else that comes out is the parser's fault."""
    rng, reported = random.Random(seed), Counter[str]()
    parse, refusals = PARSERS[name]
    for number in range(inputs):
        try:
            parse(rng)
            reported["taken"] += 1
        except refusals:
            reported["refused"] += 1
        except Exception as error:
            error.add_note(f"{name}: input {number} of seed {seed}")
            raise
    return reported


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 10**6
    for one in sys.argv[2:] or PARSERS:
        began = time.process_time()
        reported = dict(attack(one, wanted))
        took_s = time.process_time() - began
        print(f"{one}: {reported} of {wanted:,} in {took_s:.0f} s, {wanted / took_s:,.0f} a second", flush=True)
