"""The control socket with clients that say nothing, say too much, or do not read; some of another user's. Real sockets;
the loop is the test's.
"""

from __future__ import annotations

import json
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.service import control
from agent.service.bounds import Bounds
from agent.service.control import CLIENTS, Control, ask
from tests.lab import sockets
from tests.patience import until

#: More than a socket's buffers hold.
LONG = "x" * (8 << 20)


class Server:
    """A control socket that is served, turn by turn, in a thread; ``longest_s``: the longest turn."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)
        sock = sockets.directory(directory / "control.sock").listen("control.sock", 0o666, socket.SOCK_STREAM, 300)
        self.control = Control(
            sock, {"status": lambda: {"ok": 1}, "long": lambda: {"long": LONG}, "broken": lambda: {"x": 1 // 0}}
        )
        self.longest_s, self._stop = 0.0, False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stop:
            start = time.thread_time()
            self.control.serve()
            self.longest_s = max(self.longest_s, time.thread_time() - start)
            time.sleep(0.002)

    def client(self, output: bytes = b"") -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(20)
        sock.connect(f"{self.directory}/control.sock")
        sock.sendall(output)
        return sock

    def until(self, reason: str, least: int = 1) -> int:
        until(lambda: self.control.counts()[reason] >= least, why=self.control.counts)
        return self.control.counts()[reason]

    def close(self) -> None:
        self._stop = True
        self._thread.join()
        self.control.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as directory:
        made = Server(Path(directory))
        Path(directory).chmod(0o755)
        yield made
        made.close()


def test_clients_that_report_nothing_cost_nobody_else_an_answer_and_are_closed(server: Server) -> None:
    silent = [server.client(b"sta" if i % 2 else b"") for i in range(CLIENTS - 1)]
    for _ in range(5):
        assert ask(server.directory, "status") == {"ok": 1}
    assert server.control.counts()["late"] == 0
    assert server.until("late", len(silent)) == len(silent)
    assert [one.recv(1) for one in silent] == [b""] * len(silent)
    for one in silent:
        one.close()


def test_one_that_does_not_take_its_answer_is_closed(server: Server) -> None:
    lazy = server.client(b"long\n")
    assert ask(server.directory, "status") == {"ok": 1}
    server.until("late")
    lazy.close()


def test_a_long_answer_arrives_whole(server: Server) -> None:
    assert ask(server.directory, "long", timeout_s=20) == {"long": LONG}


def test_requests_in_pieces_without_end_and_without_sense(server: Server) -> None:
    slow = server.client(b"sta")
    time.sleep(0.05)
    slow.sendall(b"tus\n")
    assert json.loads(slow.makefile().read()) == {"ok": 1}
    for output in (b"status", b"status\r\n", b"status\nstatus\n"):
        with server.client(output) as one:
            assert json.loads(one.makefile().read()) == {"ok": 1}
    for output in (b"\n", b"\xff\n", b"x" * 300):
        with server.client(output) as one:
            assert "no request" in json.loads(one.makefile().read())["error"]
    with server.client(b"broken\n") as one:
        assert "ZeroDivisionError" in json.loads(one.makefile().read())["error"]
    with server.client() as one:
        one.shutdown(socket.SHUT_WR)
        assert one.recv(1) == b""
    for _ in range(50):
        server.client(b"status\n").close()
    assert ask(server.directory, "status") == {"ok": 1}


def test_only_so_many_clients_at_a_time_and_it_is_reported(server: Server) -> None:
    clients = [server.client() for _ in range(CLIENTS + 7)]
    assert server.until("refused", 7) == 7
    reported = Bounds("control", server.control.counts, control.REASONS)
    (row,) = list(reported.drain(10**12))
    assert "7 connections refused" in row.rows["reason"][0].decode()
    for one in clients:
        one.close()
    assert ask(server.directory, "status") == {"ok": 1}


def test_a_listener_without_descriptors_is_deaf_for_a_turn_and_hears_again(tmp_path: Path) -> None:
    import resource

    sock = sockets.directory(tmp_path / "control.sock").listen("control.sock", 0o666, socket.SOCK_STREAM, 300)
    served = Control(sock, {"status": lambda: {"ok": 1}})
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(tmp_path / "control.sock"))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        served.serve()
        served.serve()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert served.counts()["no_descriptor"] == 2
    client.sendall(b"status\n")
    for _ in range(3):
        served.serve()
    assert json.loads(client.makefile().read()) == {"ok": 1}
    client.close()
    served.close()
