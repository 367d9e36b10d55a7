"""How long a process takes to answer, seen from outside: real servers that take the time they are told to."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from agent.common.clocks import boot_ns
from agent.probes.tcp import RTT_GATE_NS, tick_ns
from tests.kernel.conftest import Attached
from tests.lab.tcp import Pick

Attach = Callable[..., Attached]

#: Reads a line "MS BYTES", and after MS ms answers with so many bytes: the first of them at once with a header of its
#: own.
_SERVER = """
import socket, sys, threading, time
def serve(connection):
    with connection, connection.makefile("rb") as lines:
        for line in lines:
            ms, size = map(int, line.split())
            time.sleep(ms / 1000)
            if size:
                connection.sendall(b"%09d\\n" % size)
                connection.sendall(b"x" * size)
            if "--once" in sys.argv or not size:
                return
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],)).start()
"""
#: At most so much too long, or too short, is a time: from one tick to another, and of several requests in one gate from
#: its end.
_OFF_NS = 2 * tick_ns() + RTT_GATE_NS


@contextlib.contextmanager
def server(*flags: str) -> Iterator[tuple[int, int]]:
    with subprocess.Popen([sys.executable, "-c", _SERVER, *flags], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


def ask(connection: socket.socket, ms: int, size: int = 7) -> int:
    """Returns how long it took, ns."""
    begun = boot_ns()
    connection.sendall(b"%d %d\n" % (ms, size))
    with connection.makefile("rb") as answer:
        answer.readline()
        took = boot_ns() - begun
        answer.read(size)
    return took


def of(port: int) -> Pick:
    return lambda rows: rows[rows["sport"] == port]


def answered(n: int) -> Callable[[np.ndarray], bool]:
    return lambda rows: int(rows["requests"].sum()) >= n


def timed(rows: np.ndarray, from_ns: int) -> int:
    """How many took at least half of ``from_ns``."""
    return int(rows["hist"][:, from_ns.bit_length() - 1 :].sum())


def test_answers_on_one_connection(attach: Attach) -> None:
    tcp = attach("tcp")
    with server() as (pid, port), socket.create_connection(("127.0.0.1", port)) as client:
        for _ in range(23):
            ask(client, 1)
            time.sleep(0.02)
        before = boot_ns()
        took = [ask(client, ms) for ms in (150, 90, 260, 90, 90)]
        ask(client, 0)
        client.close()
        rows = tcp.wait("service_latency", of(port), answered(29))
    assert int(rows["requests"].sum()) == int(rows["hist"].sum()) == 29
    assert timed(rows, 1 << 26) >= 5  # 67 ms
    assert rows["sum_ns"].sum() > 680_000_000 - 5 * _OFF_NS
    worst = rows[np.argmax(rows["max_ns"])]
    assert 260_000_000 - _OFF_NS < worst["max_ns"] < max(took) + _OFF_NS
    assert before + 240_000_000 - _OFF_NS < worst["max_from_ns"] < before + sum(took) + _OFF_NS
    assert set(rows["pid"]) == {pid}
    assert worst["tid"] != pid  # the thread that serves it
    assert int(rows["unanswered"].sum()) == 0
    assert tcp.lost() == 0


def test_a_connection_a_request(attach: Attach) -> None:
    tcp = attach("tcp")
    with server("--once") as (pid, port):
        took = []
        for ms in (0, 0, 120, 0, 0, 120, 120):
            with socket.create_connection(("127.0.0.1", port)) as client:
                took.append(ask(client, ms))
        rows = tcp.wait("service_latency", of(port), answered(7))
    assert int(rows["requests"].sum()) == 7
    assert 3 <= timed(rows, 1 << 26) <= sum(ns > 1 << 26 for ns in took)
    assert rows["max_ns"].max() < max(took) + _OFF_NS
    assert set(rows["pid"]) == {pid}


def test_a_process_that_stood_still_had_the_request(attach: Attach) -> None:
    """It was not even read: what counts is when it came."""
    tcp = attach("tcp")
    with server() as (pid, port), socket.create_connection(("127.0.0.1", port)) as client:
        ask(client, 0)
        os.kill(pid, signal.SIGSTOP)
        begun = boot_ns()
        client.sendall(b"0 7\n")
        time.sleep(0.5)
        os.kill(pid, signal.SIGCONT)
        assert client.recv(1)
        took = boot_ns() - begun
        with client.makefile("rb") as answer:  # closing with data unread resets the connection, and the request is lost
            assert len(answer.read(16)) == 16
        client.close()
        rows = tcp.wait("service_latency", of(port), answered(2))
    assert 500_000_000 - _OFF_NS < rows["max_ns"].max() < took + _OFF_NS


def test_a_client_that_reads_slowly_is_not_the_servers_time(attach: Attach) -> None:
    tcp = attach("tcp")
    size = 8_000_000
    with server() as (_, port), socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        client.connect(("127.0.0.1", port))
        client.sendall(b"0 %d\n" % size)
        time.sleep(0.4)
        with client.makefile("rb") as answer:
            assert len(answer.read(size + 10)) == size + 10
        client.close()
        rows = tcp.wait("service_latency", of(port), answered(1))
    assert int(rows["requests"].sum()) == 1
    assert rows["max_ns"].max() < 200_000_000


def test_no_answer(attach: Attach) -> None:
    tcp = attach("tcp")
    with server() as (_, port):
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(b"0 0\n")
                assert client.recv(1) == b""
        rows = tcp.wait("service_latency", of(port), lambda rows: int(rows["unanswered"].sum()) >= 3)
    assert int(rows["unanswered"].sum()) == 3
    assert int(rows["requests"].sum()) == 0


def test_a_request_that_is_not_answered_is_seen_while_it_waits(attach: Attach) -> None:
    """... also where it was not even read; and an answer is seen though nobody asks again."""
    tcp = attach("tcp")
    with server() as (pid, port), socket.create_connection(("127.0.0.1", port)) as client:
        ask(client, 0)
        rows = tcp.wait("service_latency", of(port), answered(1))
        assert int(rows["requests"].sum()) == 1
        before = boot_ns()
        client.sendall(b"3000 7\n")
        sent = boot_ns()
        rows = tcp.wait("service_latency", of(port), lambda rows: bool(rows["max_ns"].max() >= 2_000_000_000))
        worst = rows[np.argmax(rows["max_ns"])]
        assert worst["waiting"] > 0
        assert worst["requests"] == 0
        assert before - _OFF_NS < worst["max_from_ns"] < sent + _OFF_NS
        assert client.recv(1)
        took = boot_ns() - before
        rows = tcp.wait("service_latency", of(port), answered(2))
    assert 3_000_000_000 - _OFF_NS < rows["max_ns"].max() < took + _OFF_NS
    assert int(rows["requests"].sum()) == 2
    assert set(rows["pid"]) == {pid}


def test_what_is_sent_later_is_no_answer(attach: Attach) -> None:
    """A chat: the other end speaks again after a while."""
    tcp = attach("tcp")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        served, _ = listener.accept()
        client.sendall(b"hello")
        served.recv(10)
        served.sendall(b"hello")
        tcp.wait("service_latency", of(port), answered(1))
        time.sleep(1)
        served.sendall(b"are you there?")
        client.sendall(b"yes")
        served.recv(10)
        served.sendall(b"good")
        while client.recv(100)[-4:] != b"good":
            pass
        client.close()
        served.close()
        rows = tcp.wait("service_latency", of(port), answered(2))
    assert int(rows["requests"].sum()) == 2
    assert rows["max_ns"].max() < 1_000_000_000


@pytest.mark.parametrize("detached", [False, True])
def test_nothing_of_detached(attach: Attach, detached: bool) -> None:
    tcp = attach("tcp")
    if detached:
        os.close(tcp.loaded.families["tcp"].links.pop("on_tcp_receive"))
    with server("--once") as (_, port):
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port)) as client:
                ask(client, 20)
        rows = tcp.wait("service_latency", of(port), answered(3), 1.5 if detached else 5)
    assert bool(len(rows)) is not detached


#: Speaks HTTP/2 as gRPC does, by frames of its own: a request's head and data, an answer's after so many seconds, and
#: meanwhile PING and WINDOW_UPDATE each way.
_FRAMES = """
import socket, sys, time
def frame(kind, flags, stream, body):
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body
CONTROL = frame(8, 0, 0, bytes(4)) + frame(6, 0, 0, bytes(8))
HEAD = lambda stream: frame(1, 4, stream, bytes(30)) + frame(0, 1, stream, bytes(6))
if sys.argv[1] == "serve":
    listener = socket.create_server(("127.0.0.1", 0)); print(listener.getsockname()[1], flush=True)
    c = listener.accept()[0]
    while data := c.recv(8192):
        if len(data) in (17, 30, 47): continue
        c.sendall(CONTROL)
        time.sleep(float(sys.argv[2]))
        c.sendall(HEAD(1) + frame(1, 5, 1, bytes(2)))
else:
    c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    c.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + frame(4, 0, 0, bytes(30)) + HEAD(1))
    for n in range(3):
        while len(c.recv(4096)) in (17, 30, 47):
            c.sendall(frame(6, 1, 0, bytes(8)))
            time.sleep(0.1); c.sendall(CONTROL)
        time.sleep(0.1); c.sendall(HEAD(2 * n + 3))
    time.sleep(0.5); c.sendall(CONTROL); time.sleep(1.5); c.shutdown(socket.SHUT_WR)
    while c.recv(4096): pass
"""


def test_control_frames_of_http2_are_no_answer_and_no_request(attach: Attach) -> None:
    """Each answer takes as long as it takes, though something is written at once and read meanwhile; and what is read
    last wants no answer.
    """
    attached = attach("tcp")
    with subprocess.Popen([sys.executable, "-c", _FRAMES, "serve", "0.4"], stdout=subprocess.PIPE) as serving:
        assert serving.stdout is not None
        try:
            port = int(serving.stdout.readline())
            subprocess.run([sys.executable, "-c", _FRAMES, str(port)], check=True)
            rows = attached.wait("service_latency", of(port), answered(4))
        finally:
            serving.kill()
    assert rows["requests"].sum() == 4
    assert 0.4e9 - _OFF_NS <= rows["max_ns"].max() <= 0.4e9 + 0.2e9
    assert rows["sum_ns"].sum() >= 4 * 0.4e9 - 4 * _OFF_NS
