"""A whole agent that exports what it sees of a program that decides: every child lies inside its parent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import until
from tests.servers.certificates import self_signed
from tests.servers.strict_receiver import Span, StrictReceiver
from tests.system.agent import Agent

#: Decides in four threads, by asking a TLS server that takes some milliseconds; of every other decision the thread is
#: reported, else its waits and handshakes are the process's.
PROGRAM = """
import json, os, socket, ssl, sys, threading, time
certs, intake = sys.argv[1:]
to_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); to_server.load_cert_chain(certs + "/cert", certs + "/key")
to_client = ssl.create_default_context(cafile=certs + "/cert")
listener = socket.create_server(("127.0.0.1", 0), backlog=64)
def now(): return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
def serve():
    while True:
        with to_server.wrap_socket(listener.accept()[0], server_side=True) as asked:
            while size := asked.recv(1):
                time.sleep(0.001 * size[0])
                asked.send(size)
def decide(number):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(intake)
        for turn in range(1_000_000):
            began = now()
            plain = socket.create_connection(listener.getsockname())
            with to_client.wrap_socket(plain, server_hostname="localhost") as asking:
                for size in (0, 2, 3 + turn % 5):
                    asking.send(bytes([size])); asking.recv(1)
            thread = {"tid": threading.get_native_id()} if turn % 2 else {}
            decision = {"limiter": f"asks{number}", "result": "allowed", "duration_ns": now() - began, **thread}
            sock.send(json.dumps(decision).encode())
            time.sleep(0.02)
for target, arguments in [(serve, ())] * 4 + [(decide, (number,)) for number in range(4)]:
    threading.Thread(target=target, args=arguments, daemon=True).start()
sys.stdin.read()
"""


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    self_signed(tmp_path)
    return tmp_path


@pytest.fixture
def receiver() -> Iterator[StrictReceiver]:
    with StrictReceiver() as made:
        yield made


@pytest.fixture
def agent(tmp_path: Path, receiver: StrictReceiver) -> Iterator[Agent]:
    root = tmp_path / "agent"
    root.mkdir()
    made = Agent(
        root, config=f"prometheus: ''\notlp: {{endpoint: 'http://127.0.0.1:{receiver.port}', interval_s: 1}}\n"
    ).ready()
    yield made
    made.stop()


def children(receiver: StrictReceiver) -> list[tuple[Span, Span]]:
    """With their parents, which are decisions; not the evidence of a finding."""
    spans = {(span.trace_id, span.span_id): span for span in list(receiver.spans)}
    of = [(span, spans.get((span.trace_id, span.parent_span_id))) for span in spans.values()]
    return [(span, parent) for span, parent in of if parent is not None and parent.name.startswith("decision ")]


def test_children_lie_inside_their_decisions(agent: Agent, receiver: StrictReceiver, certs: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(certs), str(agent.run_dir / "intake.seq.sock")], stdin=subprocess.PIPE
    ) as program:
        until(lambda: len(children(receiver)) >= 1009, 60)
        program.communicate()
    assert agent.stop() == 130
    found = children(receiver)
    outside = [
        (
            span.name,
            span.start_time_unix_nano - parent.start_time_unix_nano,
            parent.end_time_unix_nano - span.end_time_unix_nano,
        )
        for span, parent in found
        if not parent.start_time_unix_nano
        <= span.start_time_unix_nano
        <= span.end_time_unix_nano
        <= parent.end_time_unix_nano
    ]
    assert outside == []
    assert receiver.violations == []
    assert {span.name.split()[0] for span, _ in found} == {"syscall", "tls"}
    kinds = {span.kind for span, _ in found if span.name == "tls handshake"}
    assert kinds == {Span.SPAN_KIND_CLIENT, Span.SPAN_KIND_SERVER}  # the program is both
    services = {r["process.pid"]: r["service.name"] for r in receiver.resources if "process.pid" in r}
    assert services[program.pid] != "tickscope"
