"""The receiver's process, taken by real exporters and by who means harm: each decision is told or counted, and nobody's
flood keeps another's out.
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
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from opentelemetry._logs import LogRecord
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from agent.posix.supervisor import IN_A_ROW
from agent.receiver.people import People
from agent.receiver.process import OtlpReceiver
from agent.receiver.settings import ReceiverConfig
from agent.receiver.taking import MOST_BYTES
from agent.receiver.wire import CONNECTIONS, NUMBER, TABLE
from tests.patience import PATIENCE
from tests.unit import otlp_attacks
from tests.unit.adapters import hashed
from tests.unit.otlp_pieces import BOOT, as_json, logs, spans

RESULTS = TABLE.by_name["result"].names
REFUSED = {"rate_limiting.result": "refused", "rate_limiting.limiter.id": "api"}
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
PROTOBUF = {"Content-Type": "application/x-protobuf"}
#: As another user: more decisions than it may send, on as many connections as there may be.
FLOOD = """
import http.client, socket, sys
sys.path.insert(0, sys.argv[2])
from tests.unit.otlp_pieces import spans
body = spans(*[{"rate_limiting.result": "allowed", "rate_limiting.limiter.id": "flood"}] * 6000)
idle = []
for _ in range(300):
    s = socket.socket(); s.connect(("127.0.0.1", int(sys.argv[1]))); idle.append(s)
print("full", flush=True)
while True:
    c = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
    try:
        c.request("POST", "/v1/traces", body, {"Content-Type": "application/x-protobuf"}); c.getresponse().read()
    except OSError:
        pass
    c.close()
    if idle:
        idle.pop().close()
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Kept:
    """A receiver as the loop keeps it."""

    def __init__(self, place: Path) -> None:
        self.http, self.grpc = free_port(), free_port()
        config = ReceiverConfig(("127.0.0.1", self.http), ("127.0.0.1", self.grpc))
        said = {"keys": "hashed", "names": {"shop:old": "new"}, "salt": "", "boot_id": BOOT}
        self.place = place
        self.directory = os.open(place, os.O_RDONLY)
        self.source = OtlpReceiver(config, self.directory, People(None), boot_of, said)
        self.rows, self.batches = TABLE.empty(0), dict[str, list[np.ndarray]]()
        self.until(self.listens)

    def read(self) -> None:
        for batch in self.source.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME)):
            if batch.table == TABLE.name:
                self.rows = np.concatenate([self.rows, batch.rows])
            else:
                self.batches.setdefault(batch.table, []).append(batch.rows)

    def until(self, done: Any) -> None:
        end = time.monotonic() + 30 * PATIENCE
        while not done():
            assert time.monotonic() < end, (self.source.state(), self.source.failures(), len(self.rows))
            self.read()
            time.sleep(0.005)

    def listens(self) -> bool:
        for port in (self.http, self.grpc):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)):
                    return False
        return True

    def counted(self, name: str, count: int) -> None:
        """Until it has come to this."""
        self.until(lambda: self.source.counts()[name] >= count)

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """The answer, while the loop goes on."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=30 * PATIENCE)
        connection.request("POST", path, body, headers)
        assert connection.sock is not None
        connection.sock.setblocking(False)
        self.until(lambda: readable(connection.sock))
        connection.sock.settimeout(30 * PATIENCE)
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found

    def close(self) -> None:
        self.source.close()
        os.close(self.directory)


def readable(sock: socket.socket) -> bool:
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    return True


def boot_of(wall_ns: np.ndarray) -> np.ndarray:
    return wall_ns + (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.time_ns())


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    one = Kept(tmp_path_factory.mktemp("otlp"))
    yield one
    one.close()
    assert list(one.place.iterdir()) == []


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Kept]:
    """For who ends the process, or counts all that it did: nothing of another test is on its way to it."""
    one = Kept(tmp_path)
    one.until(lambda: one.source.process._answers)
    yield one
    one.close()


@pytest.fixture(autouse=True)
def anew(request: pytest.FixtureRequest) -> None:
    """Nothing of a test before is on its way any more."""
    if "kept" not in request.fixturenames:
        return
    kept: Kept = request.getfixturevalue("kept")
    quiet_s = time.monotonic()
    while time.monotonic() < quiet_s + 0.3:
        kept.rows = TABLE.empty(0)
        kept.read()
        if len(kept.rows):
            quiet_s = time.monotonic()
        time.sleep(0.005)
    kept.rows = TABLE.empty(0)


@pytest.mark.parametrize("way", ["http", "http gzip", "grpc", "grpc gzip"])
def test_real_exporters_of_spans(kept: Kept, way: str) -> None:
    packed = "gzip" in way
    if way.startswith("http"):
        exporter: Any = HttpSpans(
            f"http://127.0.0.1:{kept.http}/v1/traces",
            compression=Compression.Gzip if packed else Compression.NoCompression,
        )
    else:
        exporter = GrpcSpans(
            f"127.0.0.1:{kept.grpc}", insecure=True, compression=grpc.Compression.Gzip if packed else None
        )
    provider = TracerProvider(resource=Resource({"service.name": "shop"}))
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=20))
    tracer = provider.get_tracer("acme.limiter", "3.1")
    with tracer.start_as_current_span("pay") as parent:
        for i in range(23):
            tracer.start_span(
                "limit",
                attributes={
                    "rate_limiting.result": "refused" if i % 3 else "allowed",
                    "rate_limiting.limiter.name": way,
                    "rate_limiting.key": "c",
                },
            ).end()
    kept.until(lambda: len(kept.rows) >= 23)
    provider.shutdown()
    assert len(kept.rows) == 23
    assert [RESULTS[code] for code in kept.rows["result"]].count("refused") == 15
    assert set(kept.rows["limiter_id"].tolist()) == {f"shop:{way}".encode()}
    assert set(kept.rows["key"].tolist()) == {hashed("c")}
    assert set(kept.rows["trace_id"].tolist()) == {format(parent.get_span_context().trace_id, "032x").encode()}
    assert len(set(kept.rows["span_id"].tolist())) == 23
    assert (kept.rows["duration_ns"] >= 0).all()


def test_the_real_exporter_of_logs(kept: Kept) -> None:
    provider = LoggerProvider(resource=Resource({"service.name": "shop"}))
    provider.add_log_record_processor(
        SimpleLogRecordProcessor(HttpLogs(f"http://127.0.0.1:{kept.http}/v1/logs", timeout=30 * PATIENCE))
    )
    child = os.fork()  # the exporter waits for its answer, which waits for no loop but the kernel's
    if not child:
        logger = provider.get_logger("acme")
        for _ in range(7):
            logger.emit(
                LogRecord(
                    timestamp=time.time_ns(),
                    body="limited",
                    attributes={"ratelimit.allowed": False, "ratelimit.policy": "old"},
                )
            )
        os._exit(0)
    kept.until(lambda: len(kept.rows) >= 7)
    os.waitpid(child, 0)
    assert set(kept.rows["limiter_id"].tolist()) == {b"new"}


def test_json_is_answered_in_json_with_what_was_refused(kept: Kept) -> None:
    body = json.dumps(
        as_json(spans(REFUSED, {**REFUSED, "rate_limiting.result": "maybe"}, {"http.route": "/"}))
    ).encode()
    headers = {"Content-Type": "application/json; charset=utf-8", "Content-Encoding": "gzip"}
    status, answer = kept.post("/v1/traces", gzip.compress(body), headers)
    assert status == 200
    told = json.loads(answer)["partialSuccess"]
    assert (told["rejectedSpans"], told["errorMessage"]) == (
        "1",
        "span: result 'maybe' is not known: allowed, refused, delayed, cancelled or error",
    )
    kept.until(lambda: len(kept.rows) == 1)
    status, answer = kept.post("/v1/traces", spans(REFUSED, {**REFUSED, "ratelimit.cost": -1}), PROTOBUF)
    partial = ExportTraceServiceResponse.FromString(answer).partial_success
    assert (status, partial.rejected_spans) == (200, 1)
    assert partial.error_message.startswith("span: ratelimit.cost is no number")
    assert kept.post("/v1/metrics", b"whatever", PROTOBUF) == (200, b"")
    kept.until(lambda: "loss" in kept.batches)
    assert {row["source"] for rows in kept.batches["loss"] for row in rows} == {b"otlp"}


def test_decisions_of_another_time_are_counted(kept: Kept) -> None:
    before = kept.source.counts()["times"]
    now_ns = time.time_ns()
    times = (now_ns - 16 * 60 * 10**9, now_ns + 3600 * 10**9, 1, now_ns)
    for at_ns in times:
        kept.post("/v1/logs", logs({"ratelimit.allowed": True}, at_ns=at_ns), PROTOBUF)
    kept.until(lambda: len(kept.rows) == 1)
    assert kept.source.counts()["times"] == before + 3


@pytest.mark.parametrize(
    ("request_", "status", "why"),
    [
        (
            (
                b"POST /v1/traces HTTP/1.1\r\nHost: evil.example\r\nContent-Type: application/json\r\nContent-Length:"
                b" 2\r\n\r\n{}"
            ),
            b"421",
            b"address of loopback",
        ),
        (b"GET /v1/traces HTTP/1.1\r\nHost: localhost\r\n\r\n", b"405", b"POST"),
        (b"POST /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404", b"/v1/traces"),
        (
            b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}",
            b"415",
            b"Content-Type is",
        ),
        (
            (
                b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Encoding:"
                b" br\r\nContent-Length: 2\r\n\r\n{}"
            ),
            b"415",
            b"Content-Encoding",
        ),
        (
            b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\r\n",
            b"411",
            b"Content-Length",
        ),
        (
            (
                b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length:"
                b" 99999999999\r\n\r\n"
            ),
            b"413",
            b"send smaller batches",
        ),
        (
            (
                b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length:"
                b" 2\r\n\r\n[]"
            ),
            b"400",
            b"no JSON object",
        ),
        (
            (
                b"POST /v1/logs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding:"
                b" chunked\r\n\r\n2\r\n[[\r\n0\r\n\r\n"
            ),
            b"400",
            b"no JSON",
        ),
        (
            (
                b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding:"
                b" chunked\r\n\r\nfffffff\r\n"
            ),
            b"413",
            b"smaller",
        ),
        (b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20000 + b"\r\n\r\n", b"431", b"bytes at most"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400", b"gRPC has a port of its own"),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"400", b"HTTP/1.1"),
    ],
    ids=range(13),
)
def test_what_is_no_request_gets_a_clear_answer(kept: Kept, request_: bytes, status: bytes, why: bytes) -> None:
    with socket.create_connection(("127.0.0.1", kept.http)) as client:
        client.sendall(request_)
        client.setblocking(False)
        kept.until(lambda: readable(client))
        client.settimeout(10 * PATIENCE)
        answer = b""
        while piece := client.recv(65536):
            answer += piece
    assert answer.split(b" ")[1] == status
    assert why in answer


def export(kept: Kept, data: bytes, **more: Any) -> Any:
    """The error of a call over gRPC, None where it was taken."""
    with grpc.insecure_channel(f"127.0.0.1:{kept.grpc}", options=[("grpc.max_send_message_length", -1)]) as channel:
        future = channel.unary_unary(EXPORT)
        call = future.future(data, timeout=30 * PATIENCE, **more)
        kept.until(call.done)
        return call.exception()


def test_bombs_and_garbage_over_grpc(kept: Kept) -> None:
    bomb = ExportTraceServiceRequest()
    bomb.resource_spans.add().scope_spans.add().spans.add(name="x" * (MOST_BYTES + 1))
    code = grpc.StatusCode
    error = export(kept, bomb.SerializeToString(), compression=grpc.Compression.Gzip)
    assert error.code() == code.RESOURCE_EXHAUSTED and "when it is unpacked" in error.details()
    assert export(kept, bomb.SerializeToString()).code() == code.RESOURCE_EXHAUSTED
    assert export(kept, b"garbage").code() == code.INVALID_ARGUMENT
    assert export(kept, spans(REFUSED), compression=grpc.Compression.Deflate) is None
    kept.until(lambda: len(kept.rows) == 1)
    with socket.create_connection(("127.0.0.1", kept.grpc)) as client:
        client.sendall(b"POST /v1/traces HTTP/1.1\r\n\r\n")
        kept.until(lambda: readable_once(client))
        assert b"HTTP has a port of its own" in client.recv(4096)


def readable_once(sock: socket.socket) -> bool:
    sock.setblocking(False)
    found = readable(sock)
    sock.settimeout(10)
    return found


@pytest.fixture
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What another user runs of ours, where that user may read it: who cloned it may be root at home."""
    here, root = tmp_path_factory.mktemp("code"), Path(__file__).parents[2]
    for path in (here, *here.parents[:-2]):
        path.chmod(0o755)
    shutil.copytree(root / "agent", here / "agent", ignore=shutil.ignore_patterns("__pycache__"))
    (here / "tests/unit").mkdir(parents=True)
    for path in (root / "tests/unit").glob("otlp_*.py"):
        shutil.copy(path, here / "tests/unit")
    return here


def test_another_users_flood_keeps_nobody_out(kept: Kept, code: Path) -> None:
    before = kept.source.counts()
    with subprocess.Popen(
        [sys.executable, "-c", FLOOD, str(kept.http), str(code)], user=65534, group=65534, stdout=subprocess.PIPE
    ) as flood:
        try:
            assert flood.stdout is not None
            os.set_blocking(flood.stdout.fileno(), False)
            kept.until(flood.stdout.read)
            for _ in range(5):
                assert kept.post("/v1/traces", spans(REFUSED), PROTOBUF)[0] == 200
                assert export(kept, spans(REFUSED)) is None
            kept.counted("over_rate", before["over_rate"] + 1)
            kept.counted("refused", before["refused"] + 300 - CONNECTIONS // 4)
            kept.until(lambda: int((kept.rows["limiter_id"] == b"api").sum()) == 10)
        finally:
            flood.kill()
    assert kept.source.state()["connections"] <= CONNECTIONS


@pytest.mark.parametrize("signal_", [otlp_attacks.HTTP, otlp_attacks.GRPC], ids=["http", "grpc"])
def test_attacks_of_another_user_keep_nobody_out(kept: Kept, code: Path, signal_: Any) -> None:
    kept.until(lambda: not kept.source.failures() and kept.source.processes())
    before = kept.source.processes()
    names = [kind.__name__ for kind in signal_]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.unit.otlp_attacks", str(kept.http), str(kept.grpc), *names],
        user=65534,
        group=65534,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=code,
    ) as attack:
        try:
            assert attack.stdout is not None
            os.set_blocking(attack.stdout.fileno(), False)
            kept.until(attack.stdout.read)
            for _ in range(2):
                assert (
                    kept.post("/v1/traces", spans({**REFUSED, "rate_limiting.limiter.id": "honest"}), PROTOBUF)[0]
                    == 200
                )
                assert export(kept, spans({**REFUSED, "rate_limiting.limiter.id": "honest"})) is None
            kept.until(lambda: int((kept.rows["limiter_id"] == b"honest").sum()) == 4)
        finally:
            attack.kill()
    assert kept.source.processes() == before


def test_a_body_in_very_many_pieces_is_refused(kept: Kept) -> None:
    with socket.create_connection(("127.0.0.1", kept.http)) as client:
        client.sendall(
            b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding:"
            b" chunked\r\n\r\n" + b"1\r\n \r\n" * 33_000
        )
        client.setblocking(False)
        kept.until(lambda: readable(client))
        assert b"413" in client.recv(65536)


def test_the_most_bytes_may_come_in_small_chunks(kept: Kept) -> None:
    body = spans({**REFUSED, "http.route": "x" * (MOST_BYTES - 1000)})
    head = (
        b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-protobuf\r\nTransfer-Encoding:"
        b" chunked\r\n\r\n"
    )
    assert len(body) > MOST_BYTES - 1000
    chunks = [body[at : at + 128] for at in range(0, len(body), 128)]
    data = head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", kept.http)) as client:
        sending = threading.Thread(target=client.sendall, args=(data,))
        sending.start()
        kept.until(lambda: not sending.is_alive())
        client.setblocking(False)
        kept.until(lambda: readable(client))
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
    kept.until(lambda: len(kept.rows) == 1)


def test_a_flood_of_frames_is_held_up_and_told(kept: Kept) -> None:
    before = kept.source.counts()["held_up"]
    unknown = b"\0\0\0\xee\0\0\0\0\0"  # gRPC passes over it, where pings would have it close the connection
    with socket.create_connection(("127.0.0.1", kept.grpc)) as client:
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
        client.sendall(unknown * 20_000)
        kept.counted("held_up", before + 1)


def test_a_process_that_ended_is_started_again_and_its_counts_stay(own: Kept) -> None:
    assert own.post("/v1/traces", spans(REFUSED), PROTOBUF)[0] == 200
    (child,) = own.source.processes()
    os.kill(child["pid"], signal.SIGKILL)
    own.until(lambda: "is started again" in own.source.failures().get(own.source.name, ""))
    before = own.source.counts()  # all that it had done, also what it had not told any more
    assert before["decisions"] >= 1
    own.until(lambda: not own.source.failures() and own.listens())
    assert own.source.counts()["decisions"] >= before["decisions"]
    assert own.post("/v1/traces", spans(REFUSED), PROTOBUF)[0] == 200
    for name in ("requests", "decisions"):
        own.counted(name, before[name] + 1)
    assert [row["probe"] for rows in own.batches["probe_status"] for row in rows][:1] == [b"otlp receiver"]


#: As another user: has a port as soon as it can be had.
THIEF = """
import socket, sys
print("tries", flush=True)
while True:
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(); print("got it", flush=True); sys.stdin.read()
        except OSError:
            s.close()
"""


def test_nobody_has_its_ports_while_it_is_started_again(own: Kept) -> None:
    ports = [str(own.http), str(own.grpc)]
    thieves = [
        subprocess.Popen(
            [sys.executable, "-c", THIEF, port], user=65534, group=65534, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for port in ports
    ]
    try:
        assert [one.stdout and one.stdout.readline() for one in thieves] == [b"tries\n"] * 2
        (child,) = own.source.processes()
        os.kill(child["pid"], signal.SIGKILL)
        own.until(own.source.failures)
        assert own.post("/v1/traces", spans(REFUSED), PROTOBUF)[0] == 200  # it waits, and is taken by the next one
        assert export(own, spans(REFUSED)) is None
        own.until(lambda: len(own.rows) == 2)
    finally:
        for one in thieves:
            one.kill()
    assert [one.communicate()[0] for one in thieves] == [b""] * 2


def test_what_it_did_in_its_last_moment_is_told_and_counted(own: Kept) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", own.http, timeout=30 * PATIENCE)
    own.post("/v1/traces", spans(REFUSED), PROTOBUF)
    (child,) = own.source.processes()
    for _ in range(200):  # more messages than the agent takes at once
        connection.request(
            "POST", "/v1/logs", logs({**REFUSED, "rate_limiting.limiter.id": "last"}, at_ns=time.time_ns()), PROTOBUF
        )
        assert connection.getresponse().read() == b""
        if not _ % 20:
            own.read()
    os.kill(child["pid"], signal.SIGSTOP)
    assert own.source.process.socket is not None
    own.source.process.socket.send(NUMBER.pack(0))  # an answer that it does not read, so that its end is a reset
    os.kill(child["pid"], signal.SIGKILL)
    os.waitid(os.P_PID, child["pid"], os.WEXITED | os.WNOWAIT)
    time.sleep(0.3)  # it is looked after in the turn in which it is read
    own.until(lambda: "is started again" in own.source.failures().get(own.source.name, ""))
    assert int((own.rows["limiter_id"] == b"last").sum()) == 200
    counts = own.source.counts()
    assert (counts["requests"], counts["decisions"]) == (201, 201)


def test_who_sends_is_refused_once_it_is_given_up(tmp_path: Path) -> None:
    one = Kept(tmp_path)
    try:
        for _ in range(IN_A_ROW):
            one.source.process.restarts.ended(time.monotonic(), "test")
        (child,) = one.source.processes()
        os.kill(child["pid"], signal.SIGKILL)
        one.until(lambda: one.source.process.restarts.given_up and not one.listens())
        assert "is gone" in one.source.failures()[one.source.name]
    finally:
        one.close()


def test_an_address_that_is_taken_is_told_and_tried_again(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        config, directory = ReceiverConfig(http=("127.0.0.1", port)), os.open(tmp_path, os.O_RDONLY)
        source = OtlpReceiver(
            config, directory, People(None), boot_of, {"keys": "clear", "names": {}, "salt": "", "boot_id": BOOT}
        )
        end = time.monotonic() + 30 * PATIENCE
        while not source.failures() and time.monotonic() < end:
            list(source.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME)))
            time.sleep(0.01)
        assert source.failures() == {
            "otlp_receiver.http": f"cannot listen on 127.0.0.1 port {port}: Address already in use"
        }
    while source.failures() and time.monotonic() < end:
        list(source.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME)))
        time.sleep(0.01)
    assert source.failures() == {}
    source.close()
    os.close(directory)


def test_nobody_has_it_in_memory_where_it_is_off() -> None:
    code = (
        "import sys; from agent.config import Config; from agent import main; from agent.service import reload, status;"
        " Config(); print([m for m in sys.modules if 'receiver' in m])"
    )
    assert (
        subprocess.check_output([sys.executable, "-c", code], cwd=Path(__file__).parents[2], text=True).strip() == "[]"
    )
