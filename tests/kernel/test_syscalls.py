"""System call timing against programs whose blocking is known: primes, so that a count is no accident."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest

from agent.probes import syscalls
from agent.tables import TABLES
from tests.kernel.local_attach import LocalAttacher

SLOW = TABLES["slow_syscall"].code("kind", "slow")
ALL, SAMPLED, BLOCKED = range(3)

LOCKS = """
import fcntl, os, sys, tempfile, threading, time
name = tempfile.mktemp()
a, b = open(name, 'w'), open(name, 'w')
held, free = threading.Event(), threading.Event()
def holder():
    for _ in range(13):
        fcntl.flock(a, fcntl.LOCK_EX); held.set(); time.sleep(0.02); fcntl.flock(a, fcntl.LOCK_UN); free.wait(); free.clear()
threading.Thread(target=holder).start()
for _ in range(13):
    held.wait(); held.clear()
    t = time.monotonic_ns(); fcntl.flock(b, fcntl.LOCK_EX); print(time.monotonic_ns() - t, flush=True)
    fcntl.flock(b, fcntl.LOCK_UN); free.set()
os.unlink(name)
"""

PIPES = """
import os, threading, time
r, w = os.pipe()
def reader():
    left = 11 * 400_000
    while left:
        time.sleep(0.004); left -= len(os.read(r, 65536))
threading.Thread(target=reader).start()
for _ in range(11):
    t = time.monotonic_ns(); os.write(w, bytes(400_000)); print(time.monotonic_ns() - t, flush=True)
"""

WAITS = """
import os, select, socket, time
a, b = socket.socketpair()
r, w = os.pipe()
e = os.eventfd(0)
a.settimeout(None)
p = select.epoll(); p.register(r)
pid = os.fork()
if pid == 0:
    for _ in range(17):
        time.sleep(0.015); b.send(b'x'); time.sleep(0.015); os.write(w, b'x'); time.sleep(0.015); os.eventfd_write(e, 1)
    os._exit(0)
for _ in range(17):
    a.recv(1); os.read(r, 1); os.eventfd_read(e)
os.waitpid(pid, 0)
p.poll(0.02)
"""

CALLS = """
import os, sys
sys.stdin.readline()
for _ in range(10007):
    os.getppid()
sys.stdin.readline()
"""


class Family:
    """The attached family with what its set-up adds."""

    def __init__(self, attach: Callable[..., object], mode: str = "blocked") -> None:
        self.attached = attach("syscalls")
        self.family = self.attached.loaded.families["syscalls"]  # type: ignore[attr-defined]
        self.attached.extra = list(syscalls.setup(self.family, self.attached.source, LocalAttacher(), None, {"syscalls": mode}))  # type: ignore[attr-defined]
        assert self.family.state == "attached", self.family.reason

    def slow(self, pid: int, n: int) -> np.ndarray:
        return self.attached.wait("slow_syscall", lambda r: r[(r["pid"] == pid) & (r["kind"] == SLOW)], lambda r: len(r) >= n)  # type: ignore[attr-defined,no-any-return]


def run(code: str) -> tuple[int, list[int]]:
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    return child.pid, [int(line) for line in out.split()]


def test_each_blocked_flock_is_one_row(attach: Callable[..., object]) -> None:
    family = Family(attach)
    pid, told = run(LOCKS)
    rows = family.slow(pid, 13)
    assert len(rows) == 13
    assert set(rows["syscall"]) == {b"flock"}
    assert set(rows["fd_type"]) == {b"file"}
    assert set(rows["basis"]) == {BLOCKED}
    assert np.all(np.sort(rows["duration_ns"]) <= np.sort(told))
    assert np.all(np.sort(rows["duration_ns"]) >= np.sort(told) - 5_000_000)
    assert np.all(rows["blocked_ns"] + rows["run_queue_ns"] <= rows["duration_ns"])
    assert family.attached.lost() == 0  # type: ignore[attr-defined]


def test_a_write_that_blocks_many_times_is_one_call(attach: Callable[..., object]) -> None:
    family = Family(attach)
    pid, told = run(PIPES)
    rows = family.slow(pid, 11)
    assert len(rows) == 11
    assert set(zip(rows["syscall"], rows["fd_type"], strict=True)) == {(b"write", b"pipe")}
    rows = rows[np.argsort(rows["t_ns"])]
    assert np.all(rows["duration_ns"] <= np.array(told))
    assert np.all(rows["duration_ns"] >= np.array(told) * 0.5)


def test_waiting_is_not_slow(attach: Callable[..., object]) -> None:
    family = Family(attach)
    pid, _ = run(WAITS)
    assert len(family.slow(pid, 1)) == 0
    rows = family.attached.rows("syscall_latency")  # type: ignore[attr-defined]
    mine = rows[(rows["pid"] == pid) & (rows["basis"] == BLOCKED)]
    waited = mine[mine["kind"] == TABLES["syscall_latency"].code("kind", "waiting")]
    assert waited[waited["syscall"] == b"recvfrom"]["count"].sum() == 17
    assert waited[waited["syscall"] == b"read"]["count"].sum() == 34


def test_full_counts_every_call(attach: Callable[..., object]) -> None:
    family = Family(attach, "full")
    child = subprocess.Popen([sys.executable, "-c", CALLS], stdin=subprocess.PIPE, text=True)
    assert child.stdin
    child.stdin.write("go\n")
    child.stdin.flush()

    def mine(rows: np.ndarray) -> np.ndarray:
        return rows[(rows["pid"] == child.pid) & (rows["syscall"] == b"getppid") & (rows["basis"] == ALL)]

    rows = family.attached.wait("syscall_latency", mine, lambda r: r["count"].sum() >= 10007)  # type: ignore[attr-defined]
    child.communicate("stop\n")
    assert rows["count"].sum() == 10007
    assert rows["hist"].sum() == 10007
    assert family.attached.lost() == 0  # type: ignore[attr-defined]
    pid, _ = run(LOCKS)
    slow = family.slow(pid, 13)
    assert len(slow) == 13
    assert set(slow["basis"]) == {ALL}
    assert set(slow["ret"]) == {0}
    assert np.all(slow["duration_ns"] >= slow["blocked_ns"])


def test_sampling_windows_are_marked(attach: Callable[..., object]) -> None:
    family = Family(attach, "sampled")
    child = subprocess.Popen([sys.executable, "-c", "import os\nwhile True: os.getppid()"])
    try:
        rows = family.attached.wait(  # type: ignore[attr-defined]
            "syscall_latency", lambda r: r[(r["pid"] == child.pid) & (r["basis"] == SAMPLED) & (r["syscall"] == b"getppid")], lambda r: len(r) >= 2
        )
    finally:
        child.kill()
        child.wait()
    assert rows["count"].min() > 100
    assert np.all((rows["sample_rate"] > 0) & (rows["sample_rate"] < 1))


def test_nothing_comes_when_detached(attach: Callable[..., object]) -> None:
    family = Family(attach)
    for fd in family.family.links.values():
        os.close(fd)
    family.family.links.clear()
    time.sleep(0.1)
    pid, _ = run(LOCKS)
    assert len(family.slow(pid, 13)) == 0


@pytest.mark.parametrize("name", ["read", "flock", "epoll_wait"])
def test_calls_have_names(name: str) -> None:
    assert name.encode() in syscalls.names()
