"""Connects: every one once, with its process, peer, result and duration."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agent.columns import NULL_I64
from agent.common.clocks import boot_ns
from agent.lab.stage.netns import Namespace
from agent.tables import TABLES
from tests.cable import Cable
from tests.kernel.conftest import Attached
from tests.lab.tcp import Pick, ask, closed_port, echo_server

Attach = Callable[..., Attached]
OK, FAILED, ABORTED = 0, 1, 2


def to_port(port: int) -> Pick:
    return lambda rows: rows[rows["dport"] == port]


def connects(tcp: Attached, port: int, n: int, limit_s: float = 5) -> np.ndarray:
    return tcp.wait("tcp_connect", to_port(port), lambda rows: len(rows) >= n, limit_s)


def test_successful_connects(attach: Attach) -> None:
    tcp = attach("tcp")
    with echo_server() as (_, port):
        start, took = boot_ns(), []
        for _ in range(101):
            before = boot_ns()
            with socket.create_connection(("127.0.0.1", port)):
                took.append(boot_ns() - before)
        end = boot_ns()
        rows = connects(tcp, port, 101)
    assert len(rows) == 101
    assert set(rows["result"]) == {OK}
    assert set(rows["errno"]) == {NULL_I64}
    assert set(rows["pid"]) == {os.getpid()}
    assert set(rows["comm"]) == {Path("/proc/self/comm").read_bytes().strip()}
    assert set(rows["role"]) == {TABLES["tcp_connect"].code("role", "client")}
    assert len(set(rows["sock_id"])) == 101
    assert len(set(rows["sport"])) == 101
    assert {bytes(p) for p in rows["peer"]} == {
        socket.inet_pton(socket.AF_INET6, "::ffff:127.0.0.1") + port.to_bytes(2, "little")
    }
    assert ((rows["t_ns"] > start) & (rows["t_ns"] < end)).all()
    rows = np.sort(rows, order="t_ns")
    assert ((rows["duration_ns"] > 0) & (rows["duration_ns"] <= np.array(took))).all()
    assert tcp.lost() == 0


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_refused_connects(attach: Attach, host: str, blocking: bool) -> None:
    tcp = attach("tcp")
    with closed_port(host) as port:
        for _ in range(23):
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
                s.setblocking(blocking)
                with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
                    s.connect((host, port))
        rows = connects(tcp, port, 23)
        both = tcp.loaded.words["TP_tcp_send_reset"] >= 3  # before 6.10 a reset without a socket was not traced
        resets = tcp.wait(
            "tcp_reset",
            lambda r: r[(r["sport"] == port) | (r["dport"] == port)],
            lambda r: len(r) >= (46 if both else 23),
        )
    assert len(rows) == 23
    assert set(rows["result"]) == {FAILED}
    assert set(rows["errno"]) == {errno.ECONNREFUSED}
    assert set(rows["pid"]) == {os.getpid()}
    sent, received = (
        resets[resets["direction"] == TABLES["tcp_reset"].code("direction", d)] for d in ("sent", "received")
    )
    assert len(received) == 23
    assert set(received["dport"]) == {port}
    assert set(received["pid"]) == {os.getpid()}
    if both:
        assert len(sent) == 23
        assert set(sent["sport"]) == {port}
        assert set(sent["pid"]) == {NULL_I64}
        assert set(sent["dport"]) == set(rows["sport"])
        for column in ("netns", "family", "saddr", "daddr"):
            assert set(sent[column].tolist()) == set(rows[column].tolist())
    assert tcp.lost() == 0


def test_aborted_connects(attach: Attach) -> None:
    """The program gives up while the SYN is unanswered."""
    tcp = attach("tcp")
    with Cable() as wire:
        for i in range(11):
            with wire.left.entered():
                s = socket.socket()
            s.setblocking(False)
            assert s.connect_ex((wire.NOBODY, 4200 + i)) == errno.EINPROGRESS
            s.close()
        rows = tcp.wait("tcp_connect", lambda r: r[r["netns"] == wire.left.inode], lambda r: len(r) >= 11)
    assert sorted(rows["dport"]) == list(range(4200, 4211))
    assert set(rows["result"]) == {ABORTED}
    assert set(rows["errno"]) == {NULL_I64}
    assert set(rows["pid"]) == {os.getpid()}
    assert tcp.lost() == 0


def test_timed_out_unreachable_and_portless_connects(attach: Attach) -> None:
    tcp = attach("tcp")
    with Cable() as wire:
        wire.left.run("ip", "route", "add", "10.88.0.0/16", "dev", "wire")
        wire.right.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        wire.right.run("ip", "route", "add", "unreachable", "10.88.0.0/16")
        with wire.left.entered():
            slow, unreachable, first, second = (socket.socket() for _ in range(4))
        slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1)
        assert slow.connect_ex((wire.NOBODY, 4300)) == errno.ETIMEDOUT
        assert unreachable.connect_ex(("10.88.0.1", 4301)) == errno.EHOSTUNREACH
        wire.left.run("sysctl", "-qw", "net.ipv4.ip_local_port_range=20001 20001")
        first.setblocking(False)
        assert first.connect_ex((wire.NOBODY, 4302)) == errno.EINPROGRESS
        assert second.connect_ex((wire.NOBODY, 4302)) == errno.EADDRNOTAVAIL
        for s in (slow, unreachable, first, second):
            s.close()
        rows = tcp.wait("tcp_connect", lambda r: r[r["netns"] == wire.left.inode], lambda r: len(r) >= 4)
    assert sorted((int(r["dport"]), int(r["result"]), int(r["errno"])) for r in rows) == [
        (4300, FAILED, errno.ETIMEDOUT),
        (4301, FAILED, errno.EHOSTUNREACH),
        (4302, FAILED, errno.EADDRNOTAVAIL),
        (4302, ABORTED, NULL_I64),
    ]
    assert rows["duration_ns"][rows["dport"] == 4300][0] >= 1_000_000_000
    assert tcp.lost() == 0


@pytest.mark.parametrize(
    ("host", "family", "target", "wire_family", "stored"),
    [
        ("::1", socket.AF_INET6, "::1", "ipv6", "::1"),
        ("127.0.0.1", socket.AF_INET, "::ffff:127.0.0.1", "ipv4", "::ffff:127.0.0.1"),
    ],
)
def test_ipv6_and_mapped(attach: Attach, host: str, family: int, target: str, wire_family: str, stored: str) -> None:
    tcp = attach("tcp")
    with echo_server(host, family) as (_, port):
        for _ in range(5):
            with socket.socket(socket.AF_INET6) as s:
                s.connect((target, port))
        rows = connects(tcp, port, 5)
    assert len(rows) == 5
    assert set(rows["family"]) == {TABLES["tcp_connect"].code("family", wire_family)}
    assert {bytes(a) for a in rows["daddr"]} == {socket.inet_pton(socket.AF_INET6, stored)}
    assert {bytes(a) for a in rows["saddr"]} == {socket.inet_pton(socket.AF_INET6, stored)}
    assert tcp.lost() == 0


def test_other_network_namespace(attach: Attach) -> None:
    tcp = attach("tcp")
    space = Namespace()
    with space.entered(), echo_server() as (_, port):
        for _ in range(7):
            with socket.create_connection(("127.0.0.1", port)):
                pass
        rows = connects(tcp, port, 7)
    space.close()
    assert len(rows) == 7
    assert set(rows["netns"]) == {space.inode}
    assert tcp.lost() == 0


def test_connects_to_itself(attach: Attach) -> None:
    """A simultaneous open: SYN_SENT, SYN_RECV, ESTABLISHED, all on one socket."""
    tcp = attach("tcp")
    ports = []
    for _ in range(3):
        s = socket.socket()
        s.bind(("127.0.0.1", 0))
        ports.append(s.getsockname()[1])
        s.connect(s.getsockname())
        ask(s, 19)
        s.close()
    rows = tcp.wait("tcp_connect", lambda r: r[np.isin(r["sport"], ports)], lambda r: len(r) >= 3)
    ends = tcp.wait("tcp_close", lambda r: r[np.isin(r["sport"], ports)], lambda r: len(r) >= 3)
    assert sorted(rows["dport"]) == sorted(ends["dport"]) == sorted(ports)
    assert set(rows["result"]) == {OK}
    assert set(rows["pid"]) == set(ends["pid"]) == {os.getpid()}
    assert set(ends["bytes_in"]) == set(ends["bytes_out"]) == {19}
    assert set(rows["sock_id"]) == set(ends["sock_id"])


def test_what_does_not_fit_is_counted(attach: Attach) -> None:
    """Too few entries: connects are still seen, as far as they can be, and the loss is reported."""
    tcp = attach("tcp", options={"TCP_SOCKETS": 8, "TCP_RTT_SOCKETS": 4})
    with echo_server() as (_, port), contextlib.ExitStack() as stack:
        for _ in range(31):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        rows = connects(tcp, port, 31)
    assert len(rows) == 31
    assert tcp.lost() >= 31 - 8
    assert (rows["duration_ns"] == NULL_I64).sum() >= 31 - 8


def test_closed_sockets_give_their_room_back(attach: Attach) -> None:
    """IPv4 and IPv6 sockets never share an address, so the second half cannot just overwrite the first."""
    tcp = attach("tcp", options={"TCP_SOCKETS": 1024})
    for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
        with socket.create_server((host, 0), family=family, backlog=256) as listener, contextlib.ExitStack() as stack:
            port = listener.getsockname()[1]
            for _ in range(173):
                stack.enter_context(socket.create_connection((host, port)))
            rows = connects(tcp, port, 173)
        assert len(rows) == 173
        assert (rows["duration_ns"] > 0).all()
    assert tcp.lost() == 0


@pytest.mark.parametrize(("program", "left"), [("on_tcp_state", 0), ("on_tcp_state_softirq", 7), ("on_tcp_receive", 7)])
def test_without_its_program_nothing_is_seen(attach: Attach, program: str, left: int) -> None:
    """On loopback a connect ends in its own process, when it takes the lock's backlog; in a softirq where the machine
    is slow.
    """
    tcp = attach("tcp")
    os.close(tcp.loaded.families["tcp"].links.pop(program))
    with echo_server() as (_, port):
        for _ in range(7):
            with socket.create_connection(("127.0.0.1", port)):
                pass
        rows = connects(tcp, port, 7, limit_s=1.5)
    assert (rows["pid"] != NULL_I64).sum() == left
