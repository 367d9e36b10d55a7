"""Redis servers that answer to do harm: no answer costs more memory than its bound, or more time than its deadline."""

from __future__ import annotations

import random
import socket
import time
from collections import Counter
from collections.abc import Iterator

import hiredis
import numpy as np
import pytest

from agent.common.framing import MAX_BYTES, MAX_LINES, ReplyBounds, TooMuch
from agent.common.resp import RedisDown, RedisUrl, RespClient
from agent.errors import AgentError
from agent.queues.brokers.redis import RedisStreams
from agent.queues.judged import Judged
from agent.queues.packing import TABLE, pack
from agent.queues.redis_scan import MAX_STREAMS, Scan
from tests.hostile import Answers, endless, peak, reset_peak, serving

#: Twice the largest answer for its bytes (the parser's buffer and the reply), 80 bytes an element for its objects, and
#: some room.
MOST_BYTES = 2 * MAX_BYTES + 80 * MAX_LINES + (8 << 20)


def ask(answers: Answers, timeout_s: float = 20.0) -> str:
    """Why a client gave up."""
    with serving(answers) as port:
        client = RespClient(RedisUrl.parse(f"redis://127.0.0.1:{port}"), timeout_s)
        before = reset_peak()
        with pytest.raises(RedisDown) as refused:
            client.pipeline([("PING",)])
        assert peak() - before < MOST_BYTES
        client.close()
    return str(refused.value)


@pytest.mark.parametrize(
    ("start", "again", "output"),
    [
        (b"*249999\r\n" * 2, b"*0\r\n" * 10_000, "refused an answer of more than 250,000 elements"),
        (b"*240000\r\n", b"$30000\r\n" + b"x" * 30_000 + b"\r\n", "refused an answer of more than 8 MiB"),
        (b"$8000000\r\n", b"x" * 65_536, "refused an answer that is not Redis's|protocol|Protocol"),
        (b"*250000\r\n" * 8, b"*250000\r\n" * 500, "refused an answer of more than 250,000 elements"),
        (b"*1000\r\n" * 8, b"*1000\r\n" * 500, "refused an answer of more than 250,000 elements|nested"),
        (b"*2\r\n%1\r\n%0\r\n+a\r\n", b"+a\r\n", "refused an answer that is not Redis's"),
        (b"*1000000000\r\n", b":1\r\n" * 10_000, "refused an array of 1,000,000,000 elements"),
        (b"*4294967295\r\n", b":1\r\n" * 10_000, "refused an array of 4,294,967,295 elements"),
        (b"$536870911\r\n", b"x" * 65_536, "refused a text of 536,870,911 bytes"),
        (b"+", b"x" * 65_536, "refused a line of more than 64 KiB"),
        (b"*1\r\n" * 5, b"*1\r\n" * 10_000, "No support for nested|depth|more than 250,000"),
        (b"$" + b"9" * 5000 + b"\r\n", b"x", "refused a text of 99,999"),
        (b"%900000\r\n", b"+a\r\n", "refused an answer that is not Redis's"),
        (b"*x\r\n", b"+a\r\n", "refused an answer that is not Redis's"),
    ],
)
def test_an_endless_answer_ends(start: bytes, again: bytes, output: str) -> None:
    why = ask(endless(start, again))
    assert any(part in why for part in output.split("|")), why


def test_an_answer_that_trickles_ends_with_the_deadline_of_the_whole() -> None:
    def answers(connection: socket.socket) -> None:
        connection.sendall(b"*1000\r\n")
        while True:
            connection.sendall(b":1\r\n")
            time.sleep(0.05)

    assert ask(answers, timeout_s=0.5) == "no answer within 0.5 s"


def values(rng: random.Random, depth: int = 0) -> Iterator[bytes]:
    """Random replies, with texts that look like headers."""
    kind = rng.choice("+-:$$$**_" if depth < 5 else "+-:$$_")
    if kind == "*":
        n = rng.choice([-1, 0, 1, 2, 5])
        yield b"*%d\r\n" % n
        for _ in range(max(n, 0)):
            yield from values(rng, depth + 1)
    elif kind == "$":
        text = rng.choice(
            [b"", b"\r\n", b"*1000000000\r\n", b"$536870911\r\n", b"x" * rng.randrange(300), b"\r", b"\n$-1\r"]
        )
        yield b"$%d\r\n%s\r\n" % (len(text), text)
    else:
        yield {"+": b"+OK\r\n", "-": b"-ERR no\r\n", ":": b":%d\r\n" % rng.randrange(10**6), "_": b"$-1\r\n"}[kind]


def test_framing_agrees_with_the_parser_wherever_answers_are_cut() -> None:
    rng = random.Random(7)
    for _ in range(300):
        data = b"".join(piece for _ in range(10) for piece in values(rng))
        bounds, reader, at = ReplyBounds(), hiredis.Reader(), 0
        while at < len(data):
            piece = data[at : at + rng.choice([1, 2, 7, 100])]
            bounds.take(piece)
            reader.feed(piece)
            at += len(piece)
        found = 0
        while reader.gets() is not False:
            found += 1
        assert found == 10
        assert not bounds._line and not bounds._text_left
        with pytest.raises(TooMuch, match="1,000,000,000"):
            bounds.take(b"*1000000000\r\n")


def test_each_pipeline_has_a_share_of_its_own() -> None:
    """Answers as large as may be, one after the other."""
    text = b"x" * (MAX_BYTES - 100)

    def answers(connection: socket.socket) -> None:
        while connection.recv(100):
            connection.sendall(b"$%d\r\n%s\r\n" % (len(text), text))

    with serving(answers) as port:
        client = RespClient(RedisUrl.parse(f"redis://127.0.0.1:{port}"), 20)
        for _ in range(3):
            assert client.pipeline([("PING",)]) == [text]
        client.close()


@pytest.mark.parametrize(
    "url",
    ["redis://:s3/cr3t@host", "redis://:1234/s3cr3t@host", "redis://:s3cr3t\u2100@host", "redis://u:s3cr3t@h:x/0"],
)
def test_a_url_that_cannot_be_read_reports_no_password(url: str) -> None:
    with pytest.raises(AgentError) as refused:
        RedisUrl.parse(url)
    assert "cannot be read" in refused.value.what
    assert "%2F" in refused.value.remedy
    assert not {"s3", "cr3t", "1234"} & {part for part in ("s3", "cr3t", "1234") if part in str(refused.value.why)}


def test_a_server_that_repeats_its_commands_has_no_password_reported() -> None:
    def answers(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"-ERR unknown command 'AUTH', with args beginning with: 's3cr3t'\r\n+OK\r\n")

    with serving(answers) as port:
        client = RespClient(RedisUrl.parse(f"redis://:s3cr3t@127.0.0.1:{port}"), 20)
        with pytest.raises(RedisDown, match=r"login refused: ERR unknown command 'AUTH'$"):
            client.pipeline([("PING",)])
        client.close()


def polled(queue: Judged) -> np.ndarray:
    return np.frombuffer(pack(queue.poll()), TABLE.dtype)


class Liar:
    """Answers SCAN with ever new names, and all else with ``rest``."""

    def __init__(self, rest: bytes, name_bytes: int = 20) -> None:
        self.rest, self.name_bytes, self.next = rest, name_bytes, 0

    def __call__(self, connection: socket.socket) -> None:
        while data := connection.recv(1 << 20):
            for _ in range(data.count(b"\r\nSCAN\r\n")):
                self.next += 1
                names = b"".join(
                    b"$%d\r\n%s\r\n" % (self.name_bytes, (b"%d-%d" % (self.next, i)).rjust(self.name_bytes, b"s"))
                    for i in range(2000)
                )
                connection.sendall(b"*2\r\n$1\r\n7\r\n*2000\r\n" + names)
            for _ in range(data.count(b"SETNAME")):
                connection.sendall(b"+OK\r\n")
            for _ in range(
                data.count(b"INFO\r\n") + data.count(b"\r\nTIME\r\n") + data.count(b"XPENDING") + data.count(b"XRANGE")
            ):
                connection.sendall(self.rest)


@pytest.mark.parametrize("name_bytes", [20, 1024, 3000])
def test_a_scan_without_end_keeps_a_bounded_number_of_bounded_names(name_bytes: int) -> None:
    with serving(Liar(b"-ERR no such key\r\n", name_bytes)) as port:
        queue = Judged("redis", RedisStreams(RedisUrl.parse(f"redis://127.0.0.1:{port}"), 20))
        for _ in range(4):
            assert any(b"not watched" in reason for reason in polled(queue)["reason"])
        assert queue._queue._scan is not None
        assert len(queue._queue._scan._found) <= MAX_STREAMS
        assert all(len(name) <= 1024 for name in queue._queue._scan._found)
        queue.close()


class _Replies:
    """A server's answers to SCAN; those that are exceptions are raised."""

    def __init__(self, *answers: object) -> None:
        self.answers, self.asked = list(answers), list[object]()

    def pipeline(self, commands: list[tuple[object, ...]]) -> list[object]:
        self.asked.append(commands[0][1])
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [answer]


@pytest.mark.parametrize("bad", [RedisDown("gone"), [None, []], [b"x", []], [b"9" * 40, []], [b"5", 7], 7, [b"5", [1]]])
def test_a_scan_begins_anew_after_an_answer_that_is_none(bad: object) -> None:
    client = _Replies([b"17", [b"a"]], bad, [b"0", [b"b"]])
    scan = Scan([])
    with pytest.raises((RedisDown, AttributeError, TypeError, ValueError)):
        scan.step(client, 1)  # type: ignore[arg-type]
    assert scan.step(client, 2) == [b"b"]  # type: ignore[arg-type]
    assert client.asked == [b"0", b"17", b"0"]


ODD = [
    b":1\r\n",
    b"*0\r\n",
    b"*1\r\n:1\r\n",
    b"$-1\r\n",
    b"*2\r\n*0\r\n*0\r\n",
    b"*-1\r\n",
    b"+OK\r\n",
    b"*2\r\n$4\r\nname\r\n:1\r\n",
    b"*4\r\n$4\r\nname\r\n:1\r\n$6\r\nlength\r\n$5\r\nseven\r\n",
    b"*1\r\n*8\r\n$4\r\nname\r\n$1\r\ng\r\n$7\r\npending\r\n*0\r\n$9\r\nconsumers\r\n:1\r\n$17\r\nlast-delivered-id\r\n$3\r\n0-0\r\n",
]


@pytest.mark.parametrize("odd", ODD)
def test_answers_that_are_not_what_they_are_with_redis_are_a_row(odd: bytes) -> None:
    with serving(Liar(odd)) as port:
        queue = Judged("redis", RedisStreams(RedisUrl.parse(f"redis://127.0.0.1:{port}/?streams=orders"), 5))
        for _ in range(3):
            rows = polled(queue)
            assert len(rows) >= 1
            assert rows["reason"][0] or rows["status"][0]
        queue.close()


@pytest.mark.parametrize("length", [b"9223372036854775808", b"-1"])
def test_a_length_that_no_stream_has_is_no_answer(length: bytes) -> None:
    group = b"*8\r\n+name\r\n+g\r\n+pending\r\n:0\r\n+consumers\r\n:0\r\n+last-delivered-id\r\n+0-0\r\n"
    stream = b"*6\r\n+length\r\n+%s\r\n+first-entry\r\n*1\r\n+1-0\r\n+last-entry\r\n*1\r\n+1-0\r\n" % length

    def answers(connection: socket.socket) -> None:
        while data := connection.recv(1 << 16):
            connection.sendall(
                b"+OK\r\n" * data.count(b"SETNAME") + (stream + b"*1\r\n" + group) * (data.count(b"XINFO") // 2)
            )

    with serving(answers) as port:
        queue = Judged("redis", RedisStreams(RedisUrl.parse(f"redis://127.0.0.1:{port}/?streams=orders"), 5))
        (row,) = polled(queue)
        queue.close()
    assert (row["status"], row["reason"]) == (
        b"down",
        f"redis 127.0.0.1:{port}: its answer cannot be read (ValueError)".encode(),
    )


def test_the_kind_of_failure_is_reported() -> None:
    names = TABLE.by_name["failure"].names
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as gone:
        port, closed = (s.getsockname()[1] for s in (silent, gone))
        gone.close()
        for where, want in ((port, "no_answer"), (closed, "refused")):
            queue = Judged("redis", RedisStreams(RedisUrl.parse(f"redis://127.0.0.1:{where}"), timeout_s=0.2))
            rows = polled(queue)
            queue.close()
            assert [(row["status"], names[row["failure"]]) for row in rows] == [(b"down", want)]


class _Fuzzed:
    """A client whose replies are like those of Redis, with parts that are not."""

    peer = None

    def __init__(self, seed: int) -> None:
        self.rng, self.share = random.Random(seed), random.Random(seed).choice([0, 1e-4, 1e-3, 0.02])

    def close(self) -> None:
        pass

    def pipeline(self, commands: list[tuple[object, ...]]) -> list[object]:
        return [self.mutated(self.plausible([str(part) for part in command])) for command in commands]

    def number(self) -> int:
        return self.rng.choice([0, 1, 2, 7, 300, 2**31, 2**63 - 1, self.rng.randrange(1000)])

    def entry(self) -> list[object]:
        return [b"%d-%d" % (self.number(), self.rng.randrange(3)), [b"k", b"v" * self.rng.randrange(50)]]

    def entries(self, words: list[str]) -> list[object]:
        ms = int(words[2].partition("-")[0])
        n = min(int(words[-1]), self.rng.randrange(4))
        return [[b"%d-7" % (ms + i), [b"k", b"v" * self.rng.randrange(50)]] for i in range(n)]

    def plausible(self, words: list[str]) -> object:
        rng, n = self.rng, self.rng.randrange(4)
        name = " ".join(words[:2])
        if name == "XINFO STREAM":
            state = [b"length", self.number(), b"first-entry", self.entry(), b"last-entry", self.entry()]
            counters = [b"entries-added", self.number(), b"max-deleted-entry-id", self.entry()[0]]
            return [*state, b"last-generated-id", self.entry()[0], *rng.choice([[], counters])]
        if name == "XINFO GROUPS":
            return [
                [
                    *(b"name", b"g%d" % i, b"pending", self.number(), b"consumers", n, b"last-delivered-id"),
                    *(self.entry()[0], b"entries-read", self.number(), b"lag", rng.choice([None, self.number()])),
                ]
                for i in range(n)
            ]
        if name == "XINFO CONSUMERS":
            return [[b"name", b"c%d" % i, b"pending", self.number(), b"idle", self.number()] for i in range(n)]
        replies: dict[str, object] = {
            "SCAN": [b"0", [b"s%d" % i for i in range(n)]],
            "XRANGE": self.entries(words) if words[0] == "XRANGE" else None,
            "XPENDING": [[self.entry()[0], b"c", self.number(), self.number()] for _ in range(n)],
            "TIME": [b"1790000000", b"5"],
            "INFO": b"role:master\r\nmaster_replid:%d\r\nmaster_repl_offset:%d\r\nerrorstat_NOGROUP:count=%d\r\n"
            % (n, self.number(), self.number()),
            "SMEMBERS": [b"q%d" % i for i in range(n)],
            "ZRANGE": [b"a:b", b"5"][: 2 * n],
            "HVALS": [b'{"queue": "q1", "run_at": %d}' % self.number()] * n,
            "HMGET": [b"%d" % self.number(), b'{"delay": %d}' % self.number(), None, None],
            "LINDEX": rng.choice([None, b'{"enqueued_at": %d}' % self.number(), b"7"]),
            "HGET": rng.choice([None, b"%d" % self.number()]),
        }
        return replies.get(words[0], rng.randrange(1000))

    def mutated(self, reply: object) -> object:
        if self.rng.random() < self.share:
            error = self.rng.choice(
                ["NOPERM this user", "NOPERM no key", "LOADING x", "MOVED 1 a:1", "ERR no such key"]
            )
            odd = [None, -1, b"", b"\xff", [], [[]], b"9" * 40, 2**63 - 1, -(2**63), hiredis.ReplyError(error)]
            return self.rng.choice(odd)
        return [self.mutated(part) for part in reply] if isinstance(reply, list) else reply


def test_errors_of_a_promoted_replica_are_not_new_ones() -> None:
    """Of an orderly fail-over, in which each server answers."""
    streams = RedisStreams(RedisUrl.parse("redis://127.0.0.1:1"))

    def polled(t_ns: int, errors: int) -> object:
        info = b"total_error_replies:%d\r\nerrorstat_READONLY:count=%d\r\n" % (errors, errors)
        return streams._server.parse_info([info], Counter(), t_ns).get("errors")

    assert [polled(1, 3), polled(2, 5)] == [None, "READONLY 2"]
    streams.use(RedisUrl.parse("redis://127.0.0.1:2"))
    assert [polled(3, 50_000), polled(4, 50_001)] == [None, "READONLY 1"]


def test_random_replies_are_rows() -> None:
    """Each poll gives rows that can be packed, whatever the replies; nothing that is kept grows without bound."""
    down = 0
    for seed in range(30):
        url = RedisUrl.parse("redis://h/0?streams=s0,s*&sidekiq=*&rq=*&bullmq=p&lists=l&sorted_sets=z")
        streams = RedisStreams(url)
        streams._client = _Fuzzed(seed)  # type: ignore[assignment]
        queue = Judged("redis", streams)
        for _ in range(40):
            rows = polled(queue)
            assert len(rows) >= 1
            down += bool((rows["status"] == b"down").all())
    assert down < 30 * 40 // 2
