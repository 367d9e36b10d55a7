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

from agent.probes.tcp import RTT_GATE_NS, tick_ns
from tests.kernel.conftest import Attached
from tests.lab.tcp import Pick

Attach = Callable[..., Attached]

#: Reads a line "MS BYTES", and after MS ms answers with so many bytes: the first of them at once with a header of its own.
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
_SLACK_NS = 60_000_000  # a busy machine's


@contextlib.contextmanager
def server(*flags: str) -> Iterator[tuple[int, int]]:
    with subprocess.Popen([sys.executable, "-c", _SERVER, *flags], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


def ask(connection: socket.socket, ms: int, size: int = 7) -> None:
    connection.sendall(b"%d %d\n" % (ms, size))
    with connection.makefile("rb") as answer:
        answer.readline()
        answer.read(size)


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
        before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        for ms in (150, 90, 260, 90, 90):
            ask(client, ms)
        ask(client, 0)
        client.close()
        rows = tcp.wait("service_latency", of(port), answered(29))
    assert int(rows["requests"].sum()) == 29
    assert timed(rows, 1 << 26) == 5  # 67 ms
    assert 590_000_000 < rows["sum_ns"].sum() < 680_000_000 + 29 * 4_000_000 + _SLACK_NS
    worst = rows[np.argmax(rows["max_ns"])]
    assert abs(int(worst["max_ns"]) - 260_000_000) <= RTT_GATE_NS + 2 * tick_ns() + _SLACK_NS
    assert abs(int(worst["max_from_ns"]) - before - 240_000_000) <= RTT_GATE_NS + 2 * tick_ns() + 3 * _SLACK_NS
    assert set(rows["pid"]) == {pid}
    assert worst["tid"] != pid  # the thread that serves it
    assert int(rows["unanswered"].sum()) == 0
    assert tcp.lost() == 0


def test_a_connection_a_request(attach: Attach) -> None:
    tcp = attach("tcp")
    with server("--once") as (pid, port):
        for ms in (0, 0, 120, 0, 0, 120, 120):
            with socket.create_connection(("127.0.0.1", port)) as client:
                ask(client, ms)
        rows = tcp.wait("service_latency", of(port), answered(7))
    assert int(rows["requests"].sum()) == 7
    assert timed(rows, 1 << 26) == 3
    assert set(rows["pid"]) == {pid}


def test_a_process_that_stood_still_had_the_request(attach: Attach) -> None:
    """It was not even read: what counts is when it came."""
    tcp = attach("tcp")
    with server() as (pid, port), socket.create_connection(("127.0.0.1", port)) as client:
        ask(client, 0)
        os.kill(pid, signal.SIGSTOP)
        client.sendall(b"0 7\n")
        time.sleep(0.5)
        os.kill(pid, signal.SIGCONT)
        assert client.recv(1)
        client.close()
        rows = tcp.wait("service_latency", of(port), answered(2))
    assert 480_000_000 < rows["max_ns"].max() < 500_000_000 + 2 * _SLACK_NS


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
