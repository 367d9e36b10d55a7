"""Queues by a mapping, from real endpoints: a Go program with expvar, a Python program with prometheus_client, and
RabbitMQ's and Prometheus's own pages. Counts are prime.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.queues.brokers.queues_from import BROKER, MAX_BODY_BYTES
from agent.queues.packing import TABLE
from agent.queues.queue import Queue
from tests.patience import PATIENCE, until
from tests.ports import free_ports
from tests.servers.polled import failed, poll, row_of
from tests.servers.test_rabbitmq import Odd, _once

HERE = Path(__file__).parent
NULL = TABLE.by_name["lag_messages"].null
PYTHON = """
import sys
from prometheus_client import Counter, Gauge, Histogram, start_http_server

waiting = Gauge("shop_queue_waiting", "Jobs that wait", ["queue", "shard"])
running = Gauge("shop_queue_running", "Jobs that run", ["queue", "state"])
oldest = Gauge("shop_queue_oldest_timestamp_seconds", "When the oldest came", ["queue"])
taken = Counter("shop_queue_taken", "Jobs that were taken", ["queue"])
duration = Histogram("shop_job_seconds", "Time of a job")
workers = Gauge("shop_workers", "Workers", ["queue"])
port = int(sys.argv[1])
start_http_server(port, "127.0.0.1")
print("begun", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Program:
    """A program that does what it is told on its standard input."""

    def __init__(self, *command: str, cwd: Path | None = None) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=cwd)
        assert self.process.stdin is not None and self.process.stdout is not None
        self._into, self._from = self.process.stdin, self.process.stdout
        self.first = self._from.readline().strip()

    def do(self, line: str) -> None:
        self._into.write(line + "\n")
        self._into.flush()
        assert self._from.readline() == "done\n"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._into.close()
        self._from.close()


@pytest.fixture
def python() -> Iterator[tuple[Program, str]]:
    (port,) = free_ports(1)
    program = Program(sys.executable, "-c", PYTHON, str(port))
    yield program, f"http://127.0.0.1:{port}/metrics"
    program.end()


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("go") / "goqueues"
    subprocess.run(["go", "build", "-o", str(out), "."], cwd=HERE / "goqueues", check=True)
    return out


@pytest.fixture
def go(binary: Path) -> Iterator[tuple[Program, str]]:
    program = Program(str(binary))
    yield program, f"http://127.0.0.1:{program.first}/debug/vars"
    program.end()


def source(given: Any) -> Queue:
    (queue,) = BROKER.sources([given])
    return queue


def reasons(rows: np.ndarray) -> list[str]:
    return [bytes(row["reason"]).decode() for row in rows if row["destination"] == b""]


VARS = {
    "name": "{1}",
    "length": "/queues/*/len",
    "limit": "/queues/*/cap",
    "pending": "/queues/*/busy",
    "consumers": "/queues/*/workers",
    "added": "/queues/*/added",
    "done": "/queues/*/done",
}


def test_channels_of_a_go_program_by_expvar(go: tuple[Program, str]) -> None:
    program, url = go
    queue = source({"url": url, "system": "shop", "queues": [VARS]})
    program.do("mail 101")
    program.do("sms 13")
    row = until(lambda: (row := row_of(poll(queue), "sms"))["pending"] == 2 and row)
    assert (row["lag_messages"], row["consumers"], row["system"]) == (13 - 2, 2, b"shop")
    assert row["peer"].tobytes()[16:] == int(program.first).to_bytes(2, "little")
    assert row_of(poll(queue), "mail")["lag_messages"] == 101
    program.do("release 5")
    row = until(lambda: (row := row_of(poll(queue), "sms"))["lag_messages"] == 13 - 7 and row)
    until(lambda: row_of(poll(queue), "sms")["pending"] == 2)
    row = until(lambda: (row := row_of(poll(queue), "mail"))["status"] == b"stopped" and row)
    assert b"no consumer for" in row["reason"]
    program.process.kill()
    row = until(lambda: (row := row_of(poll(queue), "mail"))["status"] == b"down" and row)
    assert failed(row) in ("refused", "closed")
    queue.close()


MAPPED = {
    "name": "{queue}",
    "length": "shop_queue_waiting",
    "pending": 'shop_queue_running{state="busy"}',
    "oldest_at_s": "shop_queue_oldest_timestamp_seconds",
    "done": "shop_queue_taken_total",
    "consumers": "shop_workers",
}


def test_a_python_program_with_prometheus_client(python: tuple[Program, str]) -> None:
    program, url = python
    queue = source({"url": url, "queues": MAPPED})
    assert set(reasons(poll(queue))) >= {"length: the page has no shop_queue_waiting"}
    program.do('waiting.labels("mail", "a").set(17); waiting.labels("mail", "b").set(2)')
    program.do('running.labels("mail", "busy").set(3); running.labels("mail", "idle").set(97)')
    program.do("import time; oldest.labels('mail').set(time.time() - 61)")
    program.do('taken.labels("mail").inc(5); workers.labels("mail").set(4)')
    rows = poll(queue)
    row = row_of(rows, "mail")
    assert (row["lag_messages"], row["pending"], row["consumers"], reasons(rows)) == (19, 3, 4, [])
    assert 61 <= row["lag_s"] == row["oldest_undelivered_s"] < 61 + 20 * PATIENCE
    program.do('taken.labels("mail").inc(50)')
    assert until(lambda: (row := row_of(poll(queue), "mail"))["out_per_s"] >= 0 and row)["system"] == b"http"
    program.do('waiting.labels("mail", "a").set(float("nan"))')
    row = row_of(poll(queue), "mail")
    assert (row["lag_messages"], row["status"]) == (NULL, b"unknown")
    assert row["reason"] == b"length is nan, not a count"
    program.do('waiting.labels("mail", "a").set(0); waiting.labels("mail", "b").set(0)')
    row = row_of(poll(queue), "mail")
    assert (row["lag_messages"], row["lag_s"], row["status"]) == (0, 0, b"ok")
    queue.close()


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"name": "q", "length": "nothing"}, "length: the page has no nothing"),
        (
            {"name": "q", "length": "shop_queue_taken_total"},
            "is a counter, not a gauge: a counter is for added or done",
        ),
        ({"name": "q", "length": "shop_job_seconds_count"}, "is a histogram, not a gauge"),
        ({"name": "q", "length": "shop_workers", "done": "shop_job_seconds_count"}, ""),
        ({"name": "{zone}", "length": "shop_workers"}, "length: shop_workers has no label zone"),
        ({"name": "q", "length": 'shop_workers{queue="x"}'}, 'the page has no shop_workers{queue="x"}'),
    ],
)
def test_what_does_not_fit_is_a_reason(python: tuple[Program, str], mapping: dict[str, str], words: str) -> None:
    program, url = python
    program.do('workers.labels("mail").set(4); taken.labels("mail").inc()')
    queue = source({"url": url, "queues": [mapping]})
    rows = poll(queue)
    assert any(words in reason for reason in reasons(rows)) if words else len(rows) == 1, rows
    queue.close()


def test_another_exporter_by_one_line(tmp_path: Path) -> None:
    """Prometheus has metrics of its own queue of notifications."""
    (port,) = free_ports(1)
    (tmp_path / "prometheus.yml").write_text("{}")
    options = (f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data")
    server = subprocess.Popen(
        ["prometheus", f"--web.listen-address=127.0.0.1:{port}", *options], stderr=subprocess.DEVNULL
    )
    try:
        length, limit = "prometheus_notifications_queue_length", "prometheus_notifications_queue_capacity"
        queue = source(f"http://127.0.0.1:{port}/metrics#name=notifications&length={length}&limit={limit}")
        row = until(lambda: (row := poll(queue)[0])["status"] == b"ok" and row)
        assert (row["destination"], row["lag_messages"], row["lag_s"]) == (b"notifications", 0, 0)
        queue.close()
        queue = source(f"http://127.0.0.1:{port}/metrics#name=a&length=prometheus_http_requests_total")
        (reason,) = until(lambda: reasons(poll(queue)))
        assert "prometheus_http_requests_total is a counter, not a gauge" in reason
        queue.close()
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize(
    ("say", "failure", "words"),
    [
        (_once(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"), "other", "HTTP 404"),
        (
            _once(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n"),
            "login",
            "HTTP 401 No: wrong user or password: see user,",
        ),
        (_once(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n"), "login", "HTTP 403 No: the user may not read this"),
        (
            _once(b"HTTP/1.1 307 Moved\r\nLocation: http://u:secret@h/metrics/?t=secret\r\nContent-Length: 0\r\n\r\n"),
            "other",
            "HTTP 307 Moved, to http://h/metrics/",
        ),
        (_once(b"HTTP/1.1 200 OK\r\n\r\nup 7"), "other", "its last line does not end: it may be cut off"),
        (_once(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n<html>\n"), "other", "is not Prometheus' format"),
    ],
)
def test_an_endpoint_that_answers_badly_is_down_with_the_reason(
    say: Callable[[Any], None], failure: str, words: str
) -> None:
    """What is odd as HTTP, slow, endless or too large: test_rabbitmq.py, by the same client."""
    server = Odd(say)
    queue = source(f"http://u:secret@127.0.0.1:{server.port}/metrics#name=mail&length=up")
    (row,) = poll(queue)
    queue.close()
    server.close()
    assert (row["status"], failed(row)) == (b"down", failure), row["reason"]
    assert words in row["reason"].decode() and b"secret" not in row["reason"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[" * 100_000, "is no JSON"),
        (b'{"a": {"len": 1}', "is no JSON"),
        (b"\xff\xfe", "is no JSON"),
        (b"9" * 5000, "is no JSON"),
        (b'{"a": {"len": true}}', "length is true, not a count"),
        (b'{"a": {"len": "5"}}', 'length is "5", not a count'),
        (b'{"a": {"len": -5}}', "length is -5, not a count"),
        (b'{"a": {"len": 1e400}}', "length is inf, not a count"),
        (b'{"a": {"len": ' + b"9" * 400 + b"}}", "not a count"),
        (b'{"a": 5}', "length: the document has no /*/len"),
        (b"[]", "length: the document has no /*/len"),
        (b"{" + b",".join(b'"%d": {"len": 1}' % i for i in range(1500)) + b"}", "more than 1024 queues"),
        (b"{" + b",".join(b'"%d": {"len": 1}' % i for i in range(21000)) + b"}", "more than 20000 values"),
    ],
)
def test_odd_documents(body: bytes, words: str) -> None:
    server = Odd(_once(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)))
    queue = source(f"http://127.0.0.1:{server.port}/#name={{1}}&length=/*/len")
    rows = poll(queue)
    queue.close()
    server.close()
    assert any(words in bytes(row["reason"]).decode() for row in rows), rows["reason"]
    assert len(rows) <= 1025


JSON_LENGTHS = {"name": "{1}", "length": "/q/*/len"}
LENGTHS = {"name": "{queue}", "length": "waits", "done": "taken_total", "oldest_at_s": "came"}


@pytest.mark.parametrize(
    ("mapping", "answer", "known", "words"),
    [
        (  # OpenMetrics: times as fractions, an exemplar
            LENGTHS,
            b'waits{queue="a",s="1"} 5 1604.5\nwaits{queue="a",s="2"} 7\ntaken_total 2 # {id="x"} 1 1\n# EOF',
            {"a": 12},
            "oldest_at_s: the page has no came",
        ),
        (LENGTHS, b'waits {queue="a"} 5', {"a": 5}, ""),
        (
            LENGTHS,
            b'waits{queue="a",s="1"} 5\nwaits{queue="a",s="2"} 0x10\n',
            {},
            'be read: waits{queue="a",s="2"} 0x10',
        ),
        (LENGTHS, b'waits{queue="a"} 5\nwaits{queue="a"} 5\nwaits{queue=""} 7\n', {"a": 5}, "its label is empty"),
        (
            {"name": "{queue.name}", "length": '{"shop.waits",s="1"}', "done": "took"},
            (
                b'# TYPE "shop.waits" gauge\n{"shop.waits", s="1" ,"queue.name"="a"} 5 # {trace="x"} 1\n'
                b'{"shop.waits",s="2","queue.name"="b"} 7\n{"shop\\n",s="1"} 3\n'
            ),
            {"a": 5},
            "done: the page has no took",
        ),
        (
            {**LENGTHS, "done": "took_seconds_bucket"},
            b'waits{queue="a"} 5\ntook_seconds_bucket{queue="a",le="1"} 3\ntook_seconds_bucket{queue="a",le="2"} 4\n',
            {"a": 5},
            "take its _count, or choose one le",
        ),
        (LENGTHS, b"# HELP a " + b"b" * 20_000 + b'\nwaits{queue="a"} 5\n', {"a": 5}, "the page has no came"),
        (LENGTHS, b'#  TYPE\twaits  counter\nwaits{queue="a"} 5\n', {}, "waits is a counter"),
        (LENGTHS, b'waits 9\nwaits{queue="a"} 5\n', {"a": 5}, "length: waits has no label queue"),
        (
            LENGTHS,
            b'waits{queue="a"} 5\ncame{queue="a"} 1.7e12\n',
            {"a": 5},
            "oldest_at_s is 1.7e+12, not a past time in seconds",
        ),
        (
            LENGTHS,
            b'waits{queue="a"} 5\ncame{queue="a"} NaN\n',
            {"a": 5},
            "oldest_at_s is nan, not a past time in seconds",
        ),
        (
            JSON_LENGTHS,
            b'{"q": {"a": {"len": 3}, "b": {"len": null}, "c": {"len": "7"}, "d": {"len": 5}}}',
            {"a": 3, "b": NULL, "c": NULL, "d": 5},
            "length is null, not a count",
        ),
    ],
)
def test_an_odd_sample_spoils_its_own_queue_only(
    mapping: dict[str, str], answer: bytes, known: dict[str, int], words: str
) -> None:
    server = Odd(_once(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer)))
    queue = source({"url": f"http://127.0.0.1:{server.port}/metrics", "queues": [mapping]})
    rows = poll(queue)
    queue.close()
    server.close()
    assert {row["destination"].decode(): row["lag_messages"] for row in rows if row["destination"]} == known
    assert any(words.encode() in row[column] for row in rows for column in ("reason", "inexact_reason")), rows


@pytest.mark.parametrize("empty", ["0", "NaN"])
@pytest.mark.parametrize("first", [True, False])
def test_a_shard_without_an_age_hides_no_other(empty: str, first: bool) -> None:
    """Of two shards, one waits since a minute and the other is empty; the age of a queue is another metric."""
    shards = [("1", 5, f"{time.time() - 60}", "60"), ("2", 0, empty, empty)]
    lines = [
        f'waits{{queue="a",s="{shard}"}} {length}\ncame{{queue="a",s="{shard}"}} {came}\n'
        f'waits{{queue="b",s="{shard}"}} {length}\nage{{queue="b",s="{shard}"}} {age}\n'
        for shard, length, came, age in (shards if first else shards[::-1])
    ]
    answer = "".join(lines).encode()
    server = Odd(_once(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer)))
    ages = [{"name": "a", "length": 'waits{queue="a"}', "oldest_at_s": "came"}]
    ages += [{"name": "b", "length": 'waits{queue="b"}', "oldest_s": "age"}]
    queue = source({"url": f"http://127.0.0.1:{server.port}/metrics", "queues": ages})
    rows = poll(queue)
    queue.close()
    server.close()
    assert [(row["lag_messages"], row["inexact_reason"]) for row in rows] == [(5, b"")] * 2
    assert 60 <= row_of(rows, "a")["lag_s"] < 60 + 20 * PATIENCE and row_of(rows, "b")["lag_s"] == 60


def test_a_slow_page_is_asked_seldom() -> None:
    asked = []

    def say(connection: Any) -> None:
        asked.append(1)
        time.sleep(0.3)
        _once(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nup 7\n")(connection)

    server = Odd(say)
    queue = source(f"http://127.0.0.1:{server.port}/metrics#name=mail&length=up")
    assert row_of(poll(queue), "mail")["lag_messages"] == 7
    row = row_of(poll(queue), "mail")
    assert (row["lag_messages"], row["exact"], b"ago: asking takes long" in row["inexact_reason"]) == (7, 0, True)
    assert len(asked) == 1
    queue.close()
    server.close()


def test_a_large_page_is_read_within_its_bound() -> None:
    page = b"".join(b'other{id="%d"} %d\n' % (i, i) for i in range(150_000)) + b"up 7\n"
    assert len(page) < MAX_BODY_BYTES
    server = Odd(_once(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(page), page)))
    (queue,) = BROKER.sources([f"http://127.0.0.1:{server.port}/metrics#name=mail&length=up"])
    row = poll(queue)[0]
    assert row["lag_messages"] == 7 or failed(row) == "no_answer"  # a busy host
    queue.close()
    server.close()


def test_a_login_that_is_missing_is_named() -> None:
    server = Odd(_once(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"))
    queue = source(f"http://127.0.0.1:{server.port}/metrics#name=mail&length=up")
    (row,) = poll(queue)
    queue.close()
    server.close()
    assert row["reason"].endswith(b"HTTP 403 Forbidden: it wants a login: set user and password_file")


def test_one_of_several_counters_that_begins_anew_is_no_step_back() -> None:
    pages = [(100, 900, 50), (120, 910, 60), *((140 + n, 5 + n, 70 + n) for n in range(5))]

    def say(connection: Any) -> None:
        added, first, second = pages.pop(0)
        done = "".join(f'done_total{{worker="{at}"}} {n}\n' for at, n in enumerate((first, second)))
        body = f"length 9\nadded_total {added}\n{done}".encode()
        _once(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))(connection)

    server = Odd(say)
    mapping = "name=mail&length=length&added=added_total&done=done_total"
    queue = source(f"http://127.0.0.1:{server.port}/metrics#{mapping}")
    rows = [poll(queue)[0] for _ in range(7)]
    queue.close()
    server.close()
    assert b"rewound" not in {row["status"] for row in rows}
    assert rows[1]["out_per_s"] > 0 and rows[2]["out_per_s"] == 0
    assert all(row["out_per_s"] > 0 for row in rows[3:])
