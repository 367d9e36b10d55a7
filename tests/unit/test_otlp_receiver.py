"""The receiver's process, with real exporters and with hostile clients: each decision is a row or counted, and no
user's flood keeps another's decisions out.
"""

from __future__ import annotations

import gzip
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry._logs import LogRecord
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from agent.common.settings import read
from agent.limiters.settings import LimiterSettings
from agent.posix.supervisor import IN_A_ROW
from agent.receiver.receiver_messages import TABLE
from agent.receiver.receiver_process import OtlpReceiver
from agent.receiver.receiver_worker import BURST, MAX_BODY_BYTES, MAX_CONNECTIONS
from agent.receiver.settings import ReceiverSettings
from tests.patience import PATIENCE, until
from tests.ports import free_port
from tests.unit.adapters import hashed
from tests.unit.otlp_pieces import BOOT, as_json, logs, spans

RESULTS = TABLE.by_name["result"].names
REFUSED = {"rate_limiting.result": "refused", "rate_limiting.limiter.id": "api"}
PROTOBUF = {"Content-Type": "application/x-protobuf"}
HEAD = b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
#: As another user: more connections than it may have, with requests on each one that it gets.
FLOOD = """
import socket, sys, threading
sys.path.insert(0, sys.argv[2])
from tests.unit.otlp_pieces import spans
body = spans(*[{"rate_limiting.result": "allowed", "rate_limiting.limiter.id": "flood"}] * 1000)
head = b"POST /v1/traces HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Type: application/x-protobuf\\r\\n"
data = head + b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body
def send(s):
    try:
        while True:
            s.sendall(data); s.recv(65536) or sys.exit()
    except OSError:
        pass
for _ in range(100):
    s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    threading.Thread(target=send, args=(s,), daemon=True).start()
print("full", flush=True)
sys.stdin.read()
"""


def config(http: object) -> tuple[ReceiverSettings, LimiterSettings]:
    return read(ReceiverSettings, {"http": http}), LimiterSettings(limiter_names={"shop:old": "new"})


def boot_of(wall_ns: np.ndarray) -> np.ndarray:
    return wall_ns + (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.time_ns())


class Kept:
    """A receiver as the loop keeps it, in a thread of its own."""

    def __init__(self, port: int | None = None, look_up: Any = None) -> None:
        self.port = port or free_port()
        self.rows, self.batches = TABLE.empty(0), dict[str, list[np.ndarray]]()
        self.source = OtlpReceiver(*config(self.port), BOOT, look_up, boot_of)
        self.stopped, self.paused = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._loop)
        self._thread.start()

    def _loop(self) -> None:
        while not self.stopped.wait(0.005):
            if self.paused.is_set():
                continue
            for batch in self.source.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME)):
                if batch.table == TABLE.name:
                    self.rows = np.concatenate([self.rows, batch.rows])
                else:
                    self.batches.setdefault(batch.table, []).append(batch.rows)

    def until(self, done: Any) -> None:
        until(done, why=lambda: (self.source.state(), self.source.failures(), len(self.rows)))

    def listens(self) -> bool:
        with socket.socket() as client:
            return not client.connect_ex(("127.0.0.1", self.port))

    def counted(self, name: str, count: int) -> None:
        """Until it has come to this."""
        self.until(lambda: self.source.counts()[name] >= count)

    def pid(self) -> int:
        self.until(self.source.processes)
        return int(self.source.processes()[0]["pid"])

    def post(self, path: str, body: bytes, headers: dict[str, str] = PROTOBUF) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30 * PATIENCE)
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found

    def raw(self, *pieces: bytes) -> bytes:
        """The whole answer to these bytes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30 * PATIENCE) as client:
            for piece in pieces:
                client.sendall(piece)
            client.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := client.recv(65536):
                answer += piece
        return answer

    def close(self) -> None:
        self.stopped.set()
        self._thread.join()
        self.source.close()


def started() -> Iterator[Kept]:
    one = Kept()
    try:
        one.until(lambda: one.source.process._beats)
        yield one
    finally:
        one.close()


@pytest.fixture
def own() -> Iterator[Kept]:
    yield from started()


@pytest.fixture(scope="module")
def of_all() -> Iterator[Kept]:
    yield from started()


@pytest.fixture
def kept(of_all: Kept) -> Kept:
    """One for all tests, without the rows of those before."""
    of_all.rows = TABLE.empty(0)
    return of_all


@pytest.mark.parametrize("compression", list(Compression))
def test_the_real_exporter_of_spans(kept: Kept, compression: Compression) -> None:
    exporter = OTLPSpanExporter(f"http://127.0.0.1:{kept.port}/v1/traces", compression=compression)
    provider = TracerProvider(resource=Resource({"service.name": "shop"}))
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=20))
    tracer = provider.get_tracer("acme.limiter", "3.1")
    with tracer.start_as_current_span("pay") as parent:
        for i in range(23):
            tracer.start_span(
                "limit",
                attributes={
                    "rate_limiting.result": "refused" if i % 3 else "allowed",
                    "rate_limiting.limiter.name": "old",
                    "rate_limiting.key": "c",
                },
            ).end()
    provider.shutdown()
    assert len(kept.rows) == 23
    assert [RESULTS[code] for code in kept.rows["result"]].count("refused") == 15
    assert set(kept.rows["limiter_id"].tolist()) == {b"new"}
    assert set(kept.rows["key"].tolist()) == {hashed("c")}
    assert set(kept.rows["trace_id"].tolist()) == {format(parent.get_span_context().trace_id, "032x").encode()}
    assert len(set(kept.rows["span_id"].tolist())) == 23
    assert (kept.rows["duration_ns"] >= 0).all()


def test_the_real_exporter_of_logs(kept: Kept) -> None:
    provider = LoggerProvider(resource=Resource({"service.name": "shop"}))
    provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(f"http://127.0.0.1:{kept.port}/v1/logs")))
    for _ in range(7):
        attributes = {"ratelimit.allowed": False, "ratelimit.policy": "old"}
        provider.get_logger("acme").emit(LogRecord(timestamp=time.time_ns(), body="limited", attributes=attributes))
    provider.shutdown()
    assert kept.rows["limiter_id"].tolist() == [b"new"] * 7


def test_partial_success_is_in_the_encoding_of_the_request(own: Kept) -> None:
    maybe = {**REFUSED, "rate_limiting.result": "maybe"}
    body = json.dumps(as_json(spans(REFUSED, maybe, {"http.route": "/"}))).encode()
    headers = {"Content-Type": "application/json; charset=utf-8", "Content-Encoding": "gzip"}
    status, answer = own.post("/v1/traces", gzip.compress(body), headers)
    partial = json.loads(answer)["partialSuccess"]
    assert (status, partial["rejectedSpans"]) == (200, "1")
    assert partial["errorMessage"].startswith("result 'maybe' is not known")
    status, answer = own.post("/v1/traces", spans(REFUSED, {**REFUSED, "ratelimit.cost": -1}))
    partial = ExportTraceServiceResponse.FromString(answer).partial_success
    assert (status, partial.rejected_spans) == (200, 1)
    assert partial.error_message.startswith("ratelimit.cost is not a number")
    assert own.post("/v1/metrics", b"whatever") == (200, b"")
    assert len(own.rows) == 2
    own.until(lambda: "loss" in own.batches)
    assert {row["source"] for rows in own.batches["loss"] for row in rows} == {b"otlp"}
    assert {name: count for name, count in own.source.counts().items() if count} == {
        "requests": 3,
        "records": 5,
        "decisions": 2,
        "ignored": 1,
        "invalid": 2,
        "metrics": 1,
    }


def test_decisions_of_another_time_are_counted(kept: Kept) -> None:
    now_ns, before = time.time_ns(), kept.source.counts()["times"]
    for at_ns in (now_ns - 16 * 60 * 10**9, now_ns + 3600 * 10**9, 1, now_ns):
        assert kept.post("/v1/logs", logs({"ratelimit.allowed": True}, at_ns=at_ns))[0] == 200
    assert len(kept.rows) == 1
    assert kept.source.counts()["times"] == before + 3


def test_a_connection_s_process_is_looked_up_once() -> None:
    asked: list[int] = []

    def look_up(rows: np.ndarray) -> None:
        asked.append(len(rows))
        rows["pid"], rows["proc_start_ns"], rows["comm"] = rows["sport"], 7, b"shop"

    kept = Kept(look_up=look_up)
    try:
        connection = http.client.HTTPConnection("127.0.0.1", kept.port)
        for _ in range(3):
            connection.request("POST", "/v1/traces", spans(REFUSED), PROTOBUF)
            assert connection.getresponse().read() == b""
        assert connection.sock is not None
        assert kept.rows["pid"].tolist() == [connection.sock.getsockname()[1]] * 3
        assert set(kept.rows["comm"].tolist()) == {b"shop"}
        assert set(kept.rows["reporter_uid"].tolist()) == {os.getuid()}
        assert asked == [1]
        connection.close()
    finally:
        kept.close()


CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("request_", "status", "why"),
    [
        (HEAD.replace(b"localhost", b"evil.example") + b"Content-Length: 2\r\n\r\n{}", 421, b"loopback address"),
        (b"GET /v1/traces HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, b"POST"),
        (HEAD.replace(b"/v1/traces", b"/v2") + b"Content-Length: 2\r\n\r\n{}", 404, b"/v1/traces"),
        (HEAD.replace(b"application/json", b"text/plain") + b"Content-Length: 2\r\n\r\n{}", 415, b"Content-Type is"),
        (HEAD + b"Content-Encoding: br\r\nContent-Length: 2\r\n\r\n{}", 415, b"Content-Encoding"),
        (HEAD + b"\r\n", 400, b"not a request with traces"),
        (HEAD + b"Content-Length: 99999999\r\n\r\n", 413, b"send smaller batches"),
        (HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", 400, b"ontent-Length"),
        (HEAD + b"Content-Length: x\r\n\r\n", 400, b"ontent-Length"),
        (HEAD + b"Content-Length: 2\r\n\r\n[]", 400, b"not a JSON object"),
        (HEAD + b"Content-Length: 1000001\r\n\r\n" + b"[" * 1_000_001, 400, b"not a request with traces"),
        (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 7\r\n\r\ngarbage", 400, b"not gzip"),
        (CHUNKED + b"2\r\n[[\r\n0\r\n\r\n", 400, b"not a request with traces"),
        (CHUNKED + b"2\r\n[[[\r\n0\r\n\r\n", 400, b"not OTLP over HTTP"),
        (CHUNKED + b"fffffff\r\n" + b"x" * (MAX_BODY_BYTES + 1), 413, b"smaller"),
        (b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000 + b"\r\n\r\n", 431, b"HTTP/1.1"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, b"not OTLP over HTTP/1.1"),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400, b"not OTLP over HTTP/1.1"),
    ],
    ids=range(18),
)
def test_what_is_no_request_gets_a_clear_answer(kept: Kept, request_: bytes, status: int, why: bytes) -> None:
    before = refusals(kept)
    answer = kept.raw(request_)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert why in answer
    kept.until(lambda: refusals(kept) == before + 1)


def refusals(kept: Kept) -> int:
    return sum(kept.source.counts()[name] for name in ("malformed", "too_large"))


def test_requests_that_do_not_come_whole_in_time_are_refused(kept: Kept) -> None:
    before = kept.source.counts()["slow"]
    begun = (HEAD[:20], HEAD + b"Content-Length: 2\r\n\r\n{", CHUNKED + b"1\r\n{\r\n")
    with ExitStack() as ends:
        clients = [
            ends.enter_context(socket.create_connection(("127.0.0.1", kept.port), timeout=30 * PATIENCE)) for _ in begun
        ]
        for client, part in zip(clients, begun, strict=True):
            client.sendall(part)
        assert [client.recv(65536)[:13] for client in clients] == [b"HTTP/1.1 408 "] * len(begun)
    kept.counted("slow", before + len(begun))


def test_the_most_bytes_may_come_in_small_chunks_and_after_an_expectation(kept: Kept) -> None:
    body = spans({**REFUSED, "http.route": "x" * (MAX_BODY_BYTES - 1000)})
    chunks = [body[at : at + 1024] for at in range(0, len(body), 1024)]
    head = CHUNKED.replace(b"application/json", b"application/x-protobuf").replace(
        b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", kept.port), timeout=30 * PATIENCE) as client:
        client.sendall(head)
        assert client.recv(65536) == b"HTTP/1.1 100 \r\n\r\n"
        client.sendall(b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert len(kept.rows) == 1


def test_while_the_agent_is_busy_clients_are_asked_to_send_again(own: Kept) -> None:
    own.paused.set()
    body = spans(REFUSED)
    connection = http.client.HTTPConnection("127.0.0.1", own.port, timeout=30 * PATIENCE)
    connection.request("POST", "/v1/traces", body, PROTOBUF)
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    connection.close()
    own.paused.clear()
    own.counted("busy", 1)
    assert own.post("/v1/traces", body)[0] == 200


@pytest.fixture
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What another user runs of ours, where that user may read it: who cloned it may be root at home."""
    here, root = tmp_path_factory.mktemp("code"), Path(__file__).parents[2]
    for path in (here, *here.parents[:-2]):
        path.chmod(0o755)
    for name in ("agent", "exporters"):
        shutil.copytree(root / name, here / name, ignore=shutil.ignore_patterns("__pycache__"))
    (here / "tests/unit").mkdir(parents=True)
    for path in (root / "tests/unit").glob("otlp_*.py"):
        shutil.copy(path, here / "tests/unit")
    return here


#: Posts the body of a file and prints the answer.
POST = """
import http.client, pathlib, sys
print(flush=True)
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
body, kind = pathlib.Path(sys.argv[2]).read_bytes(), {"Content-Type": "application/x-protobuf"}
connection.request("POST", "/v1/traces", body, kind)
sys.stdout.buffer.write(connection.getresponse().read())
"""


def other_user(*command: str, cwd: Path) -> subprocess.Popen[bytes]:
    """Has begun when it has printed a line."""
    process = subprocess.Popen(
        [sys.executable, *command],
        user=65534,
        group=65534,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=cwd,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def test_another_user_s_flood_keeps_nobody_out(own: Kept, code: Path) -> None:
    flood = other_user("-c", FLOOD, str(own.port), str(code), cwd=code)
    try:
        for _ in range(5):
            assert own.post("/v1/traces", spans(REFUSED))[0] == 200
        own.counted("refused", 100 - MAX_CONNECTIONS // 4)
        assert int((own.rows["limiter_id"] == b"api").sum()) == 5
        assert own.source.state()["connections"] <= MAX_CONNECTIONS // 4 + 1
    finally:
        flood.kill()
        flood.communicate()


def test_a_user_may_send_so_many_decisions(own: Kept, code: Path) -> None:
    body = code / "body"
    body.write_bytes(spans(*[{"ratelimit.allowed": True}] * (BURST // 4 + 2000)))
    sender = other_user("-c", POST, str(own.port), str(body), cwd=code)
    assert sender.stdout is not None
    answer, _ = sender.communicate()
    assert ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans == 2000
    own.counted("over_rate", 2000)
    assert len(own.rows) == BURST // 4
    assert own.post("/v1/traces", spans(REFUSED))[0] == 200


def test_attacks_of_another_user_keep_nobody_out(own: Kept, code: Path) -> None:
    pid = own.pid()
    attack = other_user("-m", "tests.unit.otlp_attacks", str(own.port), cwd=code)
    try:
        for _ in range(10):
            assert own.post("/v1/traces", spans(REFUSED))[0] == 200
            time.sleep(0.25)
        assert len(own.rows[own.rows["limiter_id"] == b"api"]) == 10
    finally:
        attack.kill()
        attack.communicate()
    assert own.pid() == pid
    peak_kib = int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0])
    assert peak_kib < 192 << 10
    assert "probe_status" not in own.batches  # it gave signs of life all the time
    assert own.source.failures() == {}


def test_a_process_that_ended_is_started_again_and_its_counts_stay(own: Kept) -> None:
    assert own.post("/v1/traces", spans(REFUSED))[0] == 200
    own.counted("decisions", 1)
    os.kill(own.pid(), signal.SIGKILL)
    own.until(lambda: "is started again" in own.source.failures().get(own.source.name, ""))
    assert own.post("/v1/traces", spans(REFUSED))[0] == 200  # it waits in the listener for the next process
    own.counted("decisions", 2)
    own.until(lambda: not own.source.failures())
    assert [row["probe"] for rows in own.batches["probe_status"] for row in rows][:1] == [b"otlp receiver"]


def test_clients_are_refused_once_it_is_given_up(own: Kept) -> None:
    for _ in range(IN_A_ROW):
        own.source.process.restarts.ended(time.monotonic(), "test")
    os.kill(own.pid(), signal.SIGKILL)
    own.until(lambda: own.source.process.restarts.given_up and not own.listens())
    assert "is gone" in own.source.failures()[own.source.name]


def test_an_address_that_is_taken_is_a_failure_and_tried_again() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        kept = Kept(port)
        try:
            why = f"cannot listen on 127.0.0.1 port {port}: Address already in use"
            assert kept.source.failures() == {"otlp_receiver.http": why}
            other.close()
            kept.until(lambda: not kept.source.failures() and kept.listens())
        finally:
            kept.close()


def test_other_settings_count_at_once(own: Kept) -> None:
    port = own.port
    own.paused.set()
    time.sleep(0.05)
    own.port = free_port()
    own.source.use(*config(own.port))
    own.paused.clear()
    own.until(own.listens)
    assert own.post("/v1/traces", spans(REFUSED))[0] == 200
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port))


def test_it_is_not_in_memory_where_it_is_off() -> None:
    code = (
        "import sys; from agent.config import Config; from agent import main; from agent.service import reload, status;"
        " Config(); print([m for m in sys.modules if 'receiver.' in m and m != 'agent.receiver.settings'])"
    )
    done = subprocess.check_output([sys.executable, "-c", code], cwd=Path(__file__).parents[2], text=True)
    assert done.strip() == "[]"
