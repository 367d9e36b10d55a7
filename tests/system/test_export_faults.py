"""Collectors and ports that fail in their own ways, under the whole agent: it drains on, and says what was lost and
why.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.system.agent import Agent

DECISIONS = 1511
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def hang(client: socket.socket, over: threading.Event) -> None:
    """Accepts, and never answers."""
    over.wait()


def drip(client: socket.socket, over: threading.Event) -> None:
    """Answers, a byte now and then, without end."""
    client.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not over.wait(0.2):
        client.sendall(b"x")


def refuse(client: socket.socket, over: threading.Event) -> None:
    """503 with Retry-After, to each request."""
    del over
    head = b""
    while b"\r\n\r\n" not in head:
        head += client.recv(1 << 16)
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    body = len(head.partition(b"\r\n\r\n")[2])
    while body < length:
        body += len(client.recv(1 << 16))
    client.sendall(BUSY)


def reset(client: socket.socket, over: threading.Event) -> None:
    """Resets each connection once it has something of the request."""
    del over
    client.recv(100)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


Fault = Callable[[socket.socket, threading.Event], None]


@pytest.fixture
def collector() -> Iterator[Callable[[Fault], str]]:
    """collector(fault) listens, treats each connection by ``fault``, and returns the endpoint."""
    over, threads, listeners = threading.Event(), list[threading.Thread](), list[socket.socket]()

    def treat(client: socket.socket, fault: Fault) -> None:
        with client:
            client.settimeout(20)
            try:
                fault(client, over)
            except OSError:
                return  # the agent has gone

    def accept(listener: socket.socket, fault: Fault) -> None:
        while not over.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=treat, args=(client, fault)))
            threads[-1].start()

    def begin(fault: Fault) -> str:
        listeners.append(socket.create_server(("127.0.0.1", 0)))
        threads.append(threading.Thread(target=accept, args=(listeners[-1], fault)))
        threads[-1].start()
        return f"http://127.0.0.1:{listeners[-1].getsockname()[1]}"

    yield begin
    over.set()
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    for thread in threads:
        thread.join(30)


@pytest.mark.parametrize("fault", [hang, drip, refuse, reset])
def test_a_collector_that_fails_holds_nothing_up(
    start: Callable[..., Agent], collector: Callable[[Fault], str], fault: Fault
) -> None:
    config = "prometheus: ''\notlp: {interval_s: 1, timeout_s: 1, max_queue_bytes: 65536}\n"
    agent = start(config=config, env={"OTEL_EXPORTER_OTLP_ENDPOINT": collector(fault)}).ready()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for _ in range(DECISIONS):
            sender.sendto(
                json.dumps({"limiter": "shop", "result": "error"}).encode(), str(agent.run_dir / "intake.sock")
            )
    assert len(agent.rows("limiter_decision", "limiter_id = 'shop'", DECISIONS)) == DECISIONS
    export = agent.until(lambda: (otlp := agent.status()["export"]["otlp"])["state"] != "ok" and otlp)
    assert export["last_error"]
    assert export["remedy"]
    assert export["sent_spans"] == 0
    assert [x["stage"] for x in agent.status()["loss"] if x["source"] not in ("clock_events", "clock_refused")] == [
        "export"
    ]  # other tests flood the host with steps
    assert agent.stop() == 130
    lost = [r["count"] for r in agent.json("query", "loss", "--where", "stage = 'export'")["rows"]]
    assert sum(lost) >= DECISIONS  # all of them, those too that still waited at the end


def test_a_metrics_port_in_use_is_reported_and_the_rest_runs(start: Callable[..., Agent]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        agent = start(config=f"prometheus: {address}\n").ready()
        page = agent.status()["export"]["prometheus"]
    assert page["state"] == "failed"
    assert address in page["last_error"]
    assert "in use" in page["last_error"]
    assert page["remedy"]
    assert f"cannot serve metrics on {address}" in agent.log()
    assert "try:" in agent.log()
    assert {p["state"] for p in agent.status()["probes"]} - {"off"} == {"attached"}
    assert agent.some("socket_queue", "true")
