"""Connection ends, resets and who used the socket, at both ends."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agent.columns import NULL_I64
from agent.tables import TABLES
from tests.kernel.conftest import Attached
from tests.lab.tcp import Pick, ask, echo_server, reset

Attach = Callable[..., Attached]
CLIENT, SERVER = (TABLES["tcp_close"].code("role", r) for r in ("client", "server"))


HERE = Path("/proc/self/ns/net").stat().st_ino


def of_port(port: int) -> Pick:
    return lambda rows: rows[((rows["sport"] == port) | (rows["dport"] == port)) & (rows["netns"] == HERE)]


def rows_of(tcp: Attached, table: str, port: int, n: int, limit_s: float = 5) -> np.ndarray:
    return tcp.wait(table, of_port(port), lambda rows: len(rows) >= n, limit_s)


def test_bytes_and_owners_of_both_ends(attach: Attach) -> None:
    tcp = attach("tcp")
    sizes = [1, 2, 3, 5, 7, 1009, 65537, 1_000_003, 11, 13, 17]
    with echo_server() as (server_pid, port):
        before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        for n in sizes:
            with socket.create_connection(("127.0.0.1", port)) as s:
                ask(s, n)
        rows = rows_of(tcp, "tcp_close", port, 2 * len(sizes))
        took = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - before
    again = tcp.rows("tcp_retransmit")
    client, server = rows[rows["role"] == CLIENT], rows[rows["role"] == SERVER]
    for end in (client, server):
        assert sorted(end["bytes_in"]) == sorted(sizes)
        assert sorted(end["bytes_out"]) == sorted(sizes)
        assert end["retransmits"].sum() == again["count"][np.isin(again["sock_id"], end["sock_id"])].sum()
        assert ((end["duration_ns"] > 0) & (end["duration_ns"] < took)).all()
        assert ((end["srtt_us"] > 0) & (end["srtt_us"] < 1_000_000)).all()
    assert set(client["pid"]) == {os.getpid()}
    assert set(server["pid"]) == {server_pid}
    assert set(client["dport"]) == set(server["sport"]) == {port}
    assert len(set(rows["sock_id"])) == 2 * len(sizes)
    assert tcp.lost() == 0


@pytest.mark.parametrize("how", ["server first", "half closed", "unread data", "nothing sent"])
def test_bytes_however_it_ends(attach: Attach, how: str) -> None:
    """SYN and FIN take a sequence number each, and are no bytes."""
    tcp = attach("tcp")
    to_server, to_client = (0, 0) if how == "nothing sent" else (31, 37)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        server, _ = listener.accept()
        client.sendall(b"x" * to_server)
        server.sendall(b"y" * to_client)
        if how in ("server first", "half closed"):
            server.recv(100)
        if how == "half closed":
            client.shutdown(socket.SHUT_WR)
            assert server.recv(100) == b""
        if how in ("server first", "half closed"):
            server.close()
            assert len(client.recv(100)) == to_client
            assert client.recv(100) == b""
        client.close()
        server.close()
        rows = rows_of(tcp, "tcp_close", port, 2)
    assert len(rows) == 2
    got = {int(r["role"]): (int(r["bytes_in"]), int(r["bytes_out"])) for r in rows}
    assert got == {CLIENT: (to_client, to_server), SERVER: (to_server, to_client)}
    assert tcp.lost() == 0


def test_resets(attach: Attach) -> None:
    tcp = attach("tcp")
    with echo_server() as (server_pid, port):
        for _ in range(13):
            s = socket.create_connection(("127.0.0.1", port))
            ask(s, 3)
            reset(s)
        rows = rows_of(tcp, "tcp_reset", port, 26)
        ends = rows_of(tcp, "tcp_close", port, 26)
    sent, received = (rows[rows["direction"] == TABLES["tcp_reset"].code("direction", d)] for d in ("sent", "received"))
    assert len(sent) == len(received) == 13
    assert set(sent["dport"]) == set(received["sport"]) == {port}
    assert set(sent["pid"]) == {os.getpid()}
    assert set(received["pid"]) == {server_pid}
    assert set(rows["sock_id"]) == set(ends["sock_id"])
    assert len(set(rows["sock_id"])) == 26
    assert tcp.lost() == 0


def test_connections_older_than_the_probe(attach: Attach) -> None:
    """Role, owner and bytes are known as soon as they are used; when they began is not."""
    with echo_server() as (server_pid, port):
        old = socket.create_connection(("127.0.0.1", port))
        ask(old, 1009)
        tcp = attach("tcp")
        ask(old, 17)
        old.close()
        rows = rows_of(tcp, "tcp_close", port, 2)
        rtt = rows_of(tcp, "tcp_rtt", port, 2)
        with socket.create_connection(("127.0.0.1", port)) as new:  # its listener is known by now, by the other's use
            fresh = new.getsockname()[1]
            ask(new, 1)
        ends = rows_of(tcp, "tcp_close", fresh, 2)
    assert {int(r["role"]): int(r["pid"]) for r in rows} == {CLIENT: os.getpid(), SERVER: server_pid}
    assert set(rows["bytes_in"]) == set(rows["bytes_out"]) == {1026}
    assert set(rows["duration_ns"]) == {NULL_I64}
    assert {int(r["role"]): int(r["pid"]) for r in rtt} == {CLIENT: os.getpid(), SERVER: server_pid}
    assert {int(r["role"]): int(r["pid"]) for r in ends} == {CLIENT: os.getpid(), SERVER: server_pid}
    assert tcp.lost() == 0


def test_accepted_and_never_used_belongs_to_the_listener(attach: Attach) -> None:
    tcp = attach("tcp")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        s = socket.create_connection(("127.0.0.1", port))
        s.sendall(b"x")
        rtt = tcp.wait("tcp_rtt", lambda r: r[r["sport"] == port], lambda r: len(r) >= 1)
        s.close()
    assert set(rtt["pid"]) == {os.getpid()}
    assert set(rtt["role"]) == {SERVER}


def test_a_listener_shared_by_processes_names_none_of_them(attach: Attach) -> None:
    """Two servers on one port: before its first use an accepted socket could be either's."""
    tcp = attach("tcp")
    with contextlib.ExitStack() as stack:
        mine = stack.enter_context(socket.create_server(("127.0.0.1", 0), reuse_port=True))
        port = mine.getsockname()[1]
        child = os.fork()
        if child == 0:
            other = socket.create_server(("127.0.0.1", port), reuse_port=True)
            mine.close()
            time.sleep(60)
            os._exit(len(str(other)))
        stack.callback(os.waitpid, child, 0)
        stack.callback(os.kill, child, 9)
        time.sleep(0.3)
        for _ in range(5):
            stack.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(b"x")
        rtt = tcp.wait("tcp_rtt", lambda r: r[r["sport"] == port], lambda r: len(r) >= 5)
    assert len(rtt) == 5
    assert set(rtt["pid"]) == {NULL_I64}


def test_the_thread_that_received_last(attach: Attach) -> None:
    tcp = attach("tcp")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        s = socket.create_connection(("127.0.0.1", port))
        accepted, _peer = listener.accept()
        accepted.sendall(b"x")
        tids: list[int] = []

        def use() -> None:
            tids.append(threading.get_native_id())
            s.recv(1)

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        s.close()
        accepted.close()
        rows = rows_of(tcp, "tcp_close", port, 2)
    client = rows[rows["role"] == CLIENT]
    assert list(client["tid"]) == tids
    assert list(client["pid"]) == [os.getpid()]


@pytest.mark.parametrize(
    ("programs", "table"),
    [
        ("on_tcp_state on_tcp_state_softirq on_tcp_receive on_tcp_send on_tcp_probe", "tcp_rtt"),
        ("on_tcp_state", "tcp_close"),
        ("on_tcp_send_reset", "sent"),
        ("on_tcp_receive_reset", "received"),
    ],
)
def test_without_its_programs_nothing_is_seen(attach: Attach, programs: str, table: str) -> None:
    tcp = attach("tcp")
    links = tcp.loaded.families["tcp"].links
    for program in links.keys() & programs.split():
        os.close(links.pop(program))
    with echo_server() as (_, port):
        s = socket.create_connection(("127.0.0.1", port))
        ask(s, 3)
        reset(s)
        rows = rows_of(tcp, "tcp_reset" if table in ("sent", "received") else table, port, 99, limit_s=1.0)
    if table == "tcp_close":
        rows = rows[rows["role"] == CLIENT]
    elif table != "tcp_rtt":
        rows = rows[rows["direction"] == TABLES["tcp_reset"].code("direction", table)]
    assert len(rows) == 0


@pytest.mark.parametrize("how", ["gave up", "answered", "half closed", "the server ended it", "nothing asked"])
def test_for_how_long_it_was_waited_when_it_was_given_up(attach: Attach, how: str) -> None:
    """By its program, who alone can give up; in the kernel's ticks."""
    tcp = attach("tcp")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        server, _ = listener.accept()
        if how != "nothing asked":
            began = time.monotonic_ns()
            client.sendall(b"ask")
            server.recv(100)
        if how == "answered":
            server.sendall(b"answer")
            client.recv(100)
        if how == "half closed":
            client.shutdown(socket.SHUT_WR)
        time.sleep(0.3)
        if how == "the server ended it":
            server.close()
            client.recv(100)
        client.close()
        ended = time.monotonic_ns()
        server.close()
        ends = rows_of(tcp, "tcp_close", port, 2)
    assert set(ends["waited_ns"][ends["role"] == SERVER]) == {NULL_I64}
    (waited,) = ends["waited_ns"][ends["role"] == CLIENT]
    if how == "gave up":
        assert 280_000_000 <= waited <= ended - began + 20_000_000
    elif how == "half closed":
        assert 0 <= waited < 100_000_000  # that is when it was closed
    else:
        assert waited == NULL_I64
