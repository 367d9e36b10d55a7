"""What a program did, by its own account, against what `tickscope query` returns: the whole chain, prime counts, no
loss.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.system.agent import Agent

CONNECTS = """
import socket, sys, time
family, host = (socket.AF_INET6, '::1') if sys.argv[1] == '6' else (socket.AF_INET, '127.0.0.1')
server = socket.socket(family); server.bind((host, 0)); server.listen(128)
port = server.getsockname()[1]
closed = socket.socket(family); closed.bind((host, 0)); nobody = closed.getsockname()[1]; closed.close()
for _ in range(101):
    c = socket.create_connection((host, port)); s, _ = server.accept()
    c.sendall(b'x' * 1000); s.recv(1000); c.close(); s.close()
for _ in range(23):
    try: socket.create_connection((host, nobody))
    except ConnectionRefusedError: pass
print(port, nobody)
"""

DATAGRAMS = """
import json, socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.connect(sys.argv[1])
for i in range(1009):
    result = 'refused' if i % 7 == 0 else 'allowed'
    s.send(json.dumps({'limiter': 'orders', 'result': result, 'duration_ns': 1000 + i, 'unknown': [1]}).encode())
    if i % 10 == 0: s.send(b'{"limiter": 5')
"""

STEPS = """
import ctypes, os, struct, time
libc = ctypes.CDLL(None, use_errno=True)
def shift(ns):
    sign = -1 if ns < 0 else 0
    timex = ctypes.create_string_buffer(struct.pack('<I100xqq', 0x0100 | 0x2000, 0, 0).ljust(256, bytes(1)), 256)
    struct.pack_into('<qq', timex, 72, sign, ns - sign * 10**9)
    assert libc.clock_adjtime(0, timex) >= 0, os.strerror(ctypes.get_errno())
for _ in range(11):
    shift(50_000); time.sleep(0.02); shift(-50_000); time.sleep(0.02)
shift(30_000); time.sleep(0.02)
"""


def run(code: str, *args: str) -> tuple[int, str]:
    child = subprocess.Popen([sys.executable, "-c", code, *args], stdout=subprocess.PIPE, text=True)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    return child.pid, out


def no_loss(agent: Agent) -> None:
    """But for runs of programs that the kernel left out, as the newest (7.2) does: that what was asked for has come is
    seen by its count.
    """
    rows = agent.json("query", "loss", "--where", "stage <> 'intake'")["rows"]
    assert [r for r in rows if not r["source"].endswith(" runs")] == []


def test_connections_of_both_families(shared: Agent) -> None:
    for version, host in (("4", "127.0.0.1"), ("6", "[::1]")):
        before = time.monotonic_ns()
        pid, out = run(CONNECTS, version)
        took = time.monotonic_ns() - before
        port, nobody = out.split()
        rows = shared.rows("tcp_connect", f"pid = {pid}", 124)
        assert Counter((r["peer"], r["result"], r["errno"]) for r in rows) == {
            (f"{host}:{port}", "ok", None): 101,
            (f"{host}:{nobody}", "failed", 111): 23,
        }
        assert all(0 < r["duration_ns"] < took for r in rows)
        closes = shared.rows("tcp_close", f"pid = {pid} and (sport = {port} or dport = {port})", 202)
        assert Counter((r["role"], r["bytes_in"], r["bytes_out"]) for r in closes) == {
            ("client", 0, 1000): 101,
            ("server", 1000, 0): 101,
        }
    no_loss(shared)


def test_datagrams_of_a_program(shared: Agent) -> None:
    pid, _ = run(DATAGRAMS, str(shared.run_dir / "intake.sock"))
    rows = shared.rows("limiter_decision", f"pid = {pid}", 1009)
    assert Counter((r["limiter_id"], r["result"]) for r in rows) == {
        ("orders", "refused"): 145,
        ("orders", "allowed"): 864,
    }
    assert sorted(r["duration_ns"] for r in rows) == list(range(1000, 2009))
    assert sum(r["count"] for r in shared.json("query", "loss", "--where", "stage = 'intake'")["rows"]) == 101
    no_loss(shared)


@pytest.mark.usefixtures("own_clock")
def test_clock_steps_name_their_actor(start: Callable[..., Agent]) -> None:
    agent = start().ready()
    before = agent.json("query", "clock_change")["rows"]
    pid, _ = run(STEPS)
    try:
        rows = agent.rows("clock_change", f"pid = {pid}", 23)
    finally:
        run(STEPS.replace("for _ in range(11):", "for _ in range(0):").replace("shift(30_000)", "shift(-30_000)"))
    assert not before
    assert len(rows) == 23
    assert {(r["kind"], r["via"]) for r in rows} == {("step", "clock_adjtime")}
    ordered = [r["size_ns"] for r in sorted(rows, key=lambda r: r["t_ns"])]
    wanted = [50_000, -50_000] * 11 + [30_000]
    assert all(
        abs(size - asked) <= r["err_ns"] + 1
        for size, asked, r in zip(ordered, wanted, sorted(rows, key=lambda r: r["t_ns"]), strict=True)
    )
    findings: list[dict[str, Any]] = agent.json("findings")["rows"]
    # others are about the tests beside this one, and the step that undid these
    (burst,) = [f for f in findings if f["cause"] == "clock_step" and f"pid {pid}" in f["sentence"]]
    assert "jumped 23 times (12 forward and 11 back" in burst["sentence"]
    no_loss(agent)


def test_every_call_with_full_timing(start: Callable[..., Agent]) -> None:
    agent = start("--syscalls", "full").ready()
    pid, _ = run("import os, sys\nfor _ in range(10007): os.getppid()\nimport time; time.sleep(2.5)")
    rows = agent.rows("syscall_latency", f"pid = {pid} and syscall = 'getppid' and basis = 'all'", 1)
    assert sum(r["count"] for r in rows) == 10007
    assert sum(sum(r["hist"]) for r in rows) == 10007
    no_loss(agent)


def test_a_wait_inside_a_reported_decision_is_a_row(shared: Agent) -> None:
    """A limiter that asks a server over TCP, which answers late: the wait, with its peer, is what explains the
    decision.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = """
import json, socket, sys, time
intake = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); intake.connect(sys.argv[1])
c = socket.create_connection(('127.0.0.1', int(sys.argv[2])))
def decide(wait):
    t = time.monotonic_ns()
    if wait: c.sendall(b'?'); c.recv(1)
    intake.send(json.dumps({'limiter': 'remote', 'result': 'allowed', 'duration_ns': time.monotonic_ns() - t}).encode())
decide(False); sys.stdin.readline()
for i in range(13): decide(True); time.sleep(0.05)
"""
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(shared.run_dir / "intake.sock"), str(port)], stdin=subprocess.PIPE
        )
        connection, _ = server.accept()
        assert (
            len(shared.rows("limiter_decision", f"pid = {child.pid}", 1)) == 1
        )  # from here on the process is known as a limiter
        assert child.stdin is not None
        child.stdin.close()
        for _ in range(13):
            connection.recv(1)
            time.sleep(0.1)
            connection.sendall(b"!")
        child.wait(20)
    rows = shared.rows("slow_syscall", f"pid = {child.pid} and kind = 'waiting'", 13)
    decisions = shared.rows("limiter_decision", f"pid = {child.pid}", 14)
    assert len(rows) == 13
    assert {r["peer"] for r in rows} == {f"127.0.0.1:{port}"}
    assert {(r["syscall"], r["fd_type"]) for r in rows} == {("recvfrom", "socket")}
    waited, decided = (sorted(r["duration_ns"] for r in some) for some in (rows, decisions))
    assert all(1_000_000 <= wait <= decision for wait, decision in zip(waited, decided[1:], strict=True))
