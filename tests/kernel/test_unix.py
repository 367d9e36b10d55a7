"""Unix stream sockets, seen from outside: a real server that takes the time that it is told to."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from agent.common.address import addr_text, peer_text
from agent.kernel.ring import SharedArray
from agent.probes.syscalls import classes
from tests.kernel.conftest import Attached
from tests.lab.tcp import Pick

Attach = Callable[..., Attached]

#: Reads a line "MS", and answers after MS ms.
_SERVER = """
import socket, sys, threading, time
def serve(connection):
    with connection, connection.makefile("rb") as lines:
        for line in lines:
            time.sleep(int(line) / 1000)
            connection.sendall(b"done\\n")
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1].replace("@", "\\0"))
listener.listen()
print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
_CLIENT = """
import socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    connection.sendall(b"150\\n")
    connection.recv(16)
"""


@contextlib.contextmanager
def server(path: str, program: str = _SERVER) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def connected(path: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path.replace("@", "\0"))
        yield connection


def ask(connection: socket.socket, ms: int) -> None:
    connection.sendall(b"%d\n" % ms)
    assert connection.recv(16) == b"done\n"


def by(pid: int) -> Pick:
    return lambda rows: rows[rows["server_pid"] == pid]


def of(pid: int) -> Pick:
    return lambda rows: rows[rows["pid"] == pid]


def answered(n: int) -> Callable[[np.ndarray], bool]:
    return lambda rows: int(rows["requests"].sum()) >= n


def test_both_ends_the_path_and_each_request_are_known(attach: Attach, tmp_path: Path) -> None:
    unix = attach("unix")
    path = str(tmp_path / "a server.sock")
    with server(path) as process, connected(path) as connection:
        for ms in (0,) * 16 + (150,) * 7:
            ask(connection, ms)
            time.sleep(0.005)
        time.sleep(0.1)
        ask(connection, 0)  # what was quick is reported with the next one
        rows = unix.wait("unix_peer", by(process.pid), answered(24))
        assert int(rows["requests"].sum()) == 24
        assert set(rows["pid"]) == {os.getpid()}
        assert set(rows["path"]) == {path.encode()}
        assert rows["server_comm"][0].startswith(b"python")
        assert 0.15e9 <= rows["max_ns"].max() < 0.5e9
        served = unix.wait("service_latency", of(process.pid), answered(24))
        assert int(served["requests"].sum()) == 24
        assert int(served["hist"].sum()) == 24
        assert int(served["hist"][:, (150_000_000).bit_length() - 1 :].sum()) == 7
        (peer,) = {peer_text(raw.tobytes()) for raw in rows["peer"]}
        assert {addr_text(raw.tobytes()) for raw in served["saddr"]} == {peer}
        assert peer.startswith("unix:")


def test_an_abstract_name(attach: Attach) -> None:
    unix = attach("unix")
    path = f"@tickscope test {os.getpid()}"
    with server(path) as process, connected(path) as connection:
        ask(connection, 20)
        rows = unix.wait("unix_peer", by(process.pid), answered(1))
        assert set(rows["path"]) == {path.encode()}


def test_who_waits_is_reported_before_the_answer(attach: Attach, tmp_path: Path) -> None:
    """Of a request that was read, and of one that a stopped server does not read."""
    unix = attach("unix")
    path = str(tmp_path / "s")
    with server(path) as process, connected(path) as busy, connected(path) as stopped:
        ask(stopped, 0)
        busy.sendall(b"2500\n")
        rows = unix.wait("service_latency", of(process.pid), lambda rows: bool(rows["waiting"].max(initial=0)))
        assert rows["max_ns"].max() >= 500_000_000
        assert busy.recv(16) == b"done\n"
        os.kill(process.pid, signal.SIGSTOP)
        since = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        stopped.sendall(b"0\n")
        later: Pick = lambda rows: of(process.pid)(rows[rows["max_from_ns"] > since])  # noqa: E731
        rows = unix.wait("service_latency", later, lambda rows: bool(rows["waiting"].max(initial=0)))
        assert (rows["waiting"].max(), rows["requests"].max()) == (1, 0)
        os.kill(process.pid, signal.SIGCONT)
        assert stopped.recv(16) == b"done\n"


#: As php-fpm does: reads the head of what was asked, answers, then reads the rest and closes.
_PARTLY = """
import socket, sys, time
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("ready", flush=True)
while True:
    with listener.accept()[0] as connection:
        time.sleep(int(connection.recv(4)) / 1000)
        connection.sendall(b"done\\n")
        connection.recv(64)
"""


def test_a_request_that_is_read_to_its_end_after_the_answer(attach: Attach, tmp_path: Path) -> None:
    """On a connection of its own each time: reported while it waits, and when it is answered; nothing waits after
    that.
    """
    unix, path = attach("unix"), str(tmp_path / "s")
    with server(path, _PARTLY) as process:
        with connected(path) as connection:
            connection.sendall(b"2500 and the rest of it")
            rows = unix.wait("service_latency", of(process.pid), lambda rows: bool(rows["waiting"].max(initial=0)))
            assert rows["max_ns"].max() >= 500_000_000
            assert connection.recv(16) == b"done\n"
            assert connection.recv(16) == b""
        rows = unix.wait("unix_peer", by(process.pid), answered(1))
        assert 1.4e9 <= rows["max_ns"].max() < 3e9 and set(rows["pid"]) == {os.getpid()}
        since = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        for _ in range(5):
            with connected(path) as connection:
                connection.sendall(b"0000 and the rest of it")
                assert connection.recv(16) + connection.recv(16) == b"done\n"
        with connected(path) as connection:
            connection.sendall(b"1500 and the rest of it")
            later: Pick = lambda rows: of(process.pid)(rows[rows["max_from_ns"] > since])  # noqa: E731
            unix.wait("service_latency", later, lambda rows: bool(rows["waiting"].max(initial=0)))
            assert connection.recv(16) == b"done\n"


def test_what_nobody_serves_is_not_reported(attach: Attach) -> None:
    """A pair has no server; and nothing comes when the program is not attached."""
    unix = attach("unix")
    one, other = socket.socketpair()
    with one, other:
        for _ in range(23):
            one.sendall(b"x")
            other.recv(1)
            other.sendall(b"y")
            one.recv(1)
    unix.pump()
    assert not len(of(os.getpid())(unix.rows("service_latency")))
    assert not len(of(os.getpid())(unix.rows("unix_peer")))
    os.close(unix.loaded.families["unix"].links.pop("unix_on_read"))


def test_a_call_that_waits_names_the_socket(attach: Attach, tmp_path: Path) -> None:
    unix = attach("unix", "syscalls")
    SharedArray(unix.loaded.families["syscalls"].maps["syscalls_class"], "<u8").values[:] = classes()
    path = str(tmp_path / "s")
    with server(path) as process, subprocess.Popen([sys.executable, "-c", _CLIENT, path]) as client:
        assert client.wait() == 0
        waits = unix.wait(
            "syscall_latency",
            lambda rows: rows[(rows["pid"] == client.pid) & (rows["peer"] != np.zeros(1, "V18"))],
            lambda rows: len(rows) > 0,
        )
        rows = unix.wait("unix_peer", by(process.pid), answered(1))
        assert {raw.tobytes() for raw in waits["peer"]} == {raw.tobytes() for raw in rows["peer"]}
        assert 0.1e9 <= waits["max_ns"].max() < 0.5e9
