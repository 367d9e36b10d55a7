"""System call timing against programs whose blocking is known: primes, so that a count is no accident."""

from __future__ import annotations

import ctypes as ct
import fcntl
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agent.columns import NULL_I64
from agent.common.clocks import boot_ns
from agent.kernel import syscall
from agent.kernel.probe import Parts
from agent.kernel.settings import ProbeSettings
from agent.kernel.wire_structs import make_peer
from agent.probes import syscalls
from agent.tables import TABLES
from tests.kernel.local_attach import LocalAttacher
from tests.kernel.test_storms import losses
from tests.patience import COARSE, until

SLOW = TABLES["slow_syscall"].code("kind", "slow")
ALL, SAMPLED, BLOCKED, SO_FAR = range(4)

LOCKS = f"""
import fcntl, os, sys, tempfile, threading, time
name = tempfile.mktemp()
a, b = open(name, 'w'), open(name, 'w')
held, free = threading.Event(), threading.Event()
def holder():
    for _ in range(13):
        fcntl.flock(a, fcntl.LOCK_EX); held.set(); time.sleep({0.02 * COARSE})
        fcntl.flock(a, fcntl.LOCK_UN); free.wait(); free.clear()
threading.Thread(target=holder).start()
for _ in range(13):
    held.wait(); held.clear()
    t = time.monotonic_ns(); fcntl.flock(b, fcntl.LOCK_EX); print(time.monotonic_ns() - t, flush=True)
    fcntl.flock(b, fcntl.LOCK_UN); free.set()
os.unlink(name)
"""

#: Fills a message queue, says so, and writes one more; and reads all.
MESSAGES = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True); q = libc.msgget(int(sys.argv[1]), 0o1600)
class Message(ctypes.Structure): _fields_ = [("type", ctypes.c_long), ("text", ctypes.c_char * 4096)]
m = Message(1)
while libc.msgsnd(q, ctypes.byref(m), 4096, 0o4000) == 0: pass
print("full", flush=True); libc.msgsnd(q, ctypes.byref(m), 4096, 0)
libc.msgctl(q, 0, None)
"""
TAKES = """
import ctypes, sys
libc = ctypes.CDLL(None); q = libc.msgget(int(sys.argv[1]), 0)
libc.msgrcv(q, ctypes.create_string_buffer(8192), 4096, 0, 0)
"""

MAPPED = """
import mmap, sys
with open(sys.argv[1]) as f: m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
print("mapped", flush=True); sys.stdin.read(); m[0]
"""

READER = "import os, time; time.sleep(0.3)\nwhile os.read(0, 1 << 20): pass"

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

GAPS = """
import os, threading, time
r, w = os.pipe()
def reader():
    left = 3 * 200_000
    while left:
        time.sleep(0.15); left -= len(os.read(r, 65536))
threading.Thread(target=reader).start()
for _ in range(3):
    os.write(w, bytes(200_000))
"""

THREADS = """
import threading, time
for _ in range(4999):
    t = threading.Thread(target=time.sleep, args=(0.00001,)); t.start(); t.join()
"""

#: A 32-bit program: while (read(0, sp, 1) > 0); exit(0).
READER_32 = bytes.fromhex("b80300000031db89e1ba01000000cd8085c07fecb80100000031dbcd80")

WAITS = """
import os, select, socket, time
a, b = socket.socketpair()
r, w = os.pipe()
into, out = os.pipe(), os.pipe()
e = os.eventfd(0)
a.settimeout(None)
p = select.epoll(); p.register(r)
pid = os.fork()
if pid == 0:
    def asleep():
        time.sleep(0.015)
        while open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[0] != "S": time.sleep(0.001)
    for _ in range(17):
        asleep(); b.send(b'x'); asleep(); os.write(w, b'x'); asleep(); os.eventfd_write(e, 1)
        asleep(); os.write(into[1], b'x')
    os._exit(0)
for _ in range(17):
    a.recv(1); os.read(r, 1); os.eventfd_read(e); os.splice(into[0], out[1], 1); os.read(out[0], 1)
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

#: More processes and calls than a processor has places for sums, which give way to each other at every turn; some block
#: or yield.
CROWD = """
import os, time
children = []
for i in range(61):
    pid = os.fork()
    if pid == 0:
        for _ in range(101 + i):
            os.getppid(); os.getuid(); os.getuid(); os.getegid(); os.sched_yield()
        for _ in range(7):
            time.sleep(0.001)
        os._exit(0)
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
print(*children)
"""


#: Two processes that block in the same call by turns.
TURNS = """
import os, time
def sleep(times, ms):
    for _ in range(times):
        time.sleep(ms / 1000)
first = os.fork()
if first == 0:
    sleep(31, 1); os._exit(0)
second = os.fork()
if second == 0:
    sleep(17, 2); os._exit(0)
os.waitpid(first, 0); os.waitpid(second, 0)
print(first, second)
"""

#: Waits for a lock, then stays on its processor, away from the kernel, until told to go on: argv[1] is the lock and the
#: shared byte.
SPINS = """
import fcntl, mmap, sys, time
f = open(sys.argv[1], 'r+b'); turn = mmap.mmap(f.fileno(), 1)
for _ in sys.stdin:
    turn[0] = 0
    t = time.monotonic_ns(); fcntl.flock(f, fcntl.LOCK_EX); waited = time.monotonic_ns() - t
    turn[0] = 1
    while turn[0] != 2: pass
    spun = time.monotonic_ns() - t
    fcntl.flock(f, fcntl.LOCK_UN); print(waited, spun, flush=True)
"""


#: Sends a request 0.5 s after its start, and waits for the answer.
WAITER = "import os, time; time.sleep(0.5); os.write(1, b'?'); os.read(0, 1)"
#: Its server: computes, or sleeps, for 0.4 s.
WAKER = """
import os, sys, time
os.read(0, 1)
if sys.argv[1] == '1':
    time.sleep(0.4)
until = time.thread_time() + 0.4
while sys.argv[1] == '0' and time.thread_time() < until: pass
os.write(1, b'!')
"""


class Family:
    """The attached family with what its set-up adds."""

    def __init__(self, attach: Callable[..., object], mode: str = "blocked", **more: object) -> None:
        self.attached = attach("syscalls", **more)
        self.family = self.attached.loaded.families["syscalls"]  # type: ignore[attr-defined]
        parts = Parts(settings=ProbeSettings(syscalls=mode), window=self.attached.window)  # type: ignore[attr-defined]
        self.attached.extra += syscalls.setup(self.family, self.attached.source, LocalAttacher(), None, parts)  # type: ignore[attr-defined]
        assert self.family.state == "attached", self.family.reason

    def slow(self, pid: int, n: int, *calls: bytes, waited_ns: int = 0) -> np.ndarray:
        """calls: only these; a program's start has slow ones too on a slow machine. waited_ns: at least that long
        asleep; on an emulated machine others take long too.
        """

        def mine(rows: np.ndarray) -> np.ndarray:
            enough = (rows["blocked_ns"] >= waited_ns) | (not waited_ns)
            return rows[
                (rows["pid"] == pid) & (rows["kind"] == SLOW) & enough & (np.isin(rows["syscall"], calls) | (not calls))
            ]

        return self.attached.wait("slow_syscall", mine, lambda r: len(r) >= n)  # type: ignore[attr-defined,no-any-return]

    def blocked(self, pid: int, call: bytes, n: int) -> np.ndarray:
        def mine(rows: np.ndarray) -> np.ndarray:
            return rows[(rows["pid"] == pid) & (rows["basis"] == BLOCKED) & (rows["syscall"] == call)]

        return self.attached.wait("syscall_latency", mine, lambda r: r["count"].sum() >= n)  # type: ignore[attr-defined,no-any-return]

    def sampled(self, n: int) -> np.ndarray:
        """At least n rows of the windows in which a program calls getppid() without end."""
        child = subprocess.Popen([sys.executable, "-c", "import os\nwhile True: os.getppid()"])

        def mine(rows: np.ndarray) -> np.ndarray:
            return rows[(rows["pid"] == child.pid) & (rows["basis"] == SAMPLED) & (rows["syscall"] == b"getppid")]

        try:
            return self.attached.wait("syscall_latency", mine, lambda r: len(r) >= n)  # type: ignore[attr-defined,no-any-return]
        finally:
            child.kill()
            child.wait()


def attach_raw_tracepoint(program: int, name: bytes) -> int:
    text = ct.create_string_buffer(name)
    link = syscall.bpf(
        17, syscall.attributes(struct.pack("<QI", ct.addressof(text), program))
    )  # BPF_RAW_TRACEPOINT_OPEN
    assert link >= 0, os.strerror(-link)
    return link


def run(code: str) -> tuple[int, list[int]]:
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    return child.pid, [int(line) for line in out.split()]


def test_each_blocked_flock_is_one_row(attach: Callable[..., object]) -> None:
    family = Family(attach)
    pid, reported = run(LOCKS)
    rows = family.slow(pid, 13, b"flock")
    assert len(rows) == 13
    assert set(rows["fd_type"]) == {b"file"}
    assert set(rows["waker_pid"]) == {pid}
    assert set(rows["basis"]) == {BLOCKED}
    assert np.all(np.sort(rows["duration_ns"]) <= np.sort(reported))
    assert np.all(np.sort(rows["duration_ns"]) >= np.sort(reported) - 5_000_000 * COARSE)
    assert np.median(rows["duration_ns"]) > 15_000_000
    assert np.all(rows["blocked_ns"] + rows["run_queue_ns"] <= rows["duration_ns"])
    assert family.attached.lost() == 0  # type: ignore[attr-defined]


def test_a_call_whose_switch_in_no_program_sees_is_a_row(attach: Callable[..., object], tmp_path: Path) -> None:
    """As where the kernel runs no program while the task before is the current one; here sched_switch's is away for a
    moment.
    """
    ours, *others = sorted(os.sched_getaffinity(0))
    if not others:
        pytest.skip("one processor: the program cannot come back while the thread is on it")
    family = Family(attach)
    program, links = family.family.programs["syscalls_on_switch"], family.family.links
    name = tmp_path / "lock"
    name.write_bytes(b"\2")
    reported = []
    with name.open("r+b") as lock, mmap.mmap(lock.fileno(), 1) as turn:
        fcntl.flock(lock, fcntl.LOCK_EX)
        child = subprocess.Popen(
            [sys.executable, "-c", SPINS, str(name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert child.stdin
        assert child.stdout
        os.sched_setaffinity(child.pid, others[-1:])
        os.sched_setaffinity(0, [ours])
        try:
            for _ in range(7):
                child.stdin.write("go\n")
                while turn[0] != 0 or Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
                    time.sleep(0.001)
                time.sleep(0.02)
                os.close(links.pop("syscalls_on_switch"))
                fcntl.flock(lock, fcntl.LOCK_UN)
                while turn[0] != 1:
                    assert child.poll() is None
                    time.sleep(0.001)
                links["syscalls_on_switch"] = attach_raw_tracepoint(program, b"sched_switch")
                turn[0] = 2
                reported.append([int(n) for n in child.stdout.readline().split()])
                fcntl.flock(lock, fcntl.LOCK_EX)
        finally:
            os.sched_setaffinity(0, [ours, *others])
            child.stdin.close()
        assert child.wait(5) == 0
    rows = family.slow(child.pid, 7, b"flock")
    rows = rows[np.argsort(rows["t_ns"])]
    waited, spun = np.array(reported).T
    assert len(rows) == 7
    assert set(rows["fd_type"]) == {b"file"}
    assert np.all(rows["duration_ns"] <= spun)
    assert np.all(rows["duration_ns"] >= waited * 0.5)
    assert family.attached.lost() == 0  # type: ignore[attr-defined]


def test_a_write_that_blocks_many_times_is_one_call(attach: Callable[..., object]) -> None:
    family = Family(attach)
    pid, reported = run(PIPES)
    rows = family.slow(pid, 11, b"write")
    assert len(rows) == 11
    assert set(zip(rows["syscall"], rows["fd_type"], strict=True)) == {(b"write", b"pipe")}
    assert set(rows["waker_pid"]) <= {pid, NULL_I64}  # none: no single block was long
    rows = rows[np.argsort(rows["t_ns"])]
    assert np.all(rows["duration_ns"] <= np.array(reported))
    assert np.all(rows["duration_ns"] >= np.array(reported) * 0.5)


def test_who_ended_a_wait_is_known(attach: Callable[..., object]) -> None:
    """A pipe's reader, another process, let its writer go on."""
    family = Family(attach)
    reader = subprocess.Popen([sys.executable, "-c", READER], stdin=subprocess.PIPE)
    writer = subprocess.Popen([sys.executable, "-c", "import os; os.write(1, bytes(300_000))"], stdout=reader.stdin)
    assert writer.wait(20) == 0
    rows = family.slow(writer.pid, 1, b"write")
    reader.communicate()
    assert (set(rows["waker_pid"]), len(rows)) == ({reader.pid}, 1)


def test_who_took_a_message_from_a_full_queue_is_known(attach: Callable[..., object]) -> None:
    """System V's: it takes 16 KiB, the reader waits for a while before each message."""
    family = Family(attach)
    key = 0x7469636B ^ os.getpid()
    writer = subprocess.Popen([sys.executable, "-c", MESSAGES, str(key)], stdout=subprocess.PIPE)
    assert writer.stdout
    assert syscalls.WatchedProcesses(family.family).add(writer.pid, 50_000_000)
    writer.stdout.readline()
    reader = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.3)\n" + TAKES, str(key)])
    assert reader.wait(20) == 0
    assert writer.wait(20) == 0

    def mine(rows: np.ndarray) -> np.ndarray:
        return rows[(rows["pid"] == writer.pid) & (rows["syscall"] == b"msgsnd")]

    rows = family.attached.wait("slow_syscall", mine, lambda rows: len(rows) > 0)  # type: ignore[attr-defined]
    assert set(zip(rows["waker_pid"], rows["kind"] == SLOW, strict=True)) == {(reader.pid, False)}


@pytest.mark.parametrize("nap", [True, False])
def test_what_the_waker_did_before_is_known(attach: Callable[..., object], nap: bool) -> None:
    """Its own last long wait, though nobody watches it, and its CPU time since then."""
    family = Family(attach)
    waiter = subprocess.Popen([sys.executable, "-c", WAITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    waker = subprocess.Popen([sys.executable, "-c", WAKER, str(int(nap))], stdin=waiter.stdout, stdout=waiter.stdin)
    assert syscalls.WatchedProcesses(family.family).add(waiter.pid, 50_000_000)
    assert waker.wait(20) == 0
    assert waiter.wait(20) == 0

    def theirs(rows: np.ndarray) -> np.ndarray:
        return rows[(rows["pid"] == waker.pid) | (rows["pid"] == waiter.pid) & (rows["syscall"] == b"read")]

    rows = family.attached.wait("slow_syscall", theirs, lambda rows: len(rows) > nap)  # type: ignore[attr-defined]
    (mine,), its = rows[rows["pid"] == waiter.pid], rows[rows["pid"] == waker.pid]
    assert mine["waker_pid"] == waker.pid
    assert mine["waker_awake_ns"] < mine["duration_ns"]
    if nap:
        assert mine["waker_cpu_ns"] < 100_000_000 * COARSE
        assert (its["syscall"][0], its["fd_type"][0]) == (b"clock_nanosleep", b"")
        assert its["duration_ns"][0] > 290_000_000
    else:
        assert 290_000_000 < mine["waker_cpu_ns"] < mine["duration_ns"]
    assert len(its) == nap


def test_what_the_wakers_waker_waited_for_is_known(attach: Callable[..., object]) -> None:
    """Neither is watched; the second one waited since before the first one's wait."""
    family = Family(attach)
    passes = "import os; os.read(0, 1); os.write(1, b'x')"
    napper = subprocess.Popen(
        [sys.executable, "-c", "import os, time; os.read(0, 1); time.sleep(0.4); os.write(1, b'x'); os.read(0, 1)"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    middle = subprocess.Popen([sys.executable, "-c", passes], stdin=napper.stdout, stdout=subprocess.PIPE)
    waiter = subprocess.Popen([sys.executable, "-c", "import os; os.read(0, 1)"], stdin=middle.stdout)
    assert syscalls.WatchedProcesses(family.family).add(waiter.pid, 50_000_000)
    time.sleep(0.2 * COARSE)
    assert napper.stdin
    napper.stdin.write(b"x")
    napper.stdin.flush()
    assert [child.wait(20) for child in (middle, waiter)] == [0, 0]
    napper.stdin.close()
    assert napper.wait(20) == 0

    def theirs(rows: np.ndarray) -> np.ndarray:
        return np.asarray(rows[np.isin(rows["pid"], [napper.pid, middle.pid, waiter.pid]) & (rows["kind"] != SLOW)])

    rows = family.attached.wait("slow_syscall", theirs, lambda rows: len({*rows["pid"]}) == 3)  # type: ignore[attr-defined]
    known = {int(row["pid"]): (row["syscall"], row["waker_pid"]) for row in rows}
    assert known[waiter.pid] == (b"read", middle.pid)
    assert known[middle.pid] == (b"read", napper.pid)
    assert known[napper.pid][0] == b"clock_nanosleep"


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no /dev/fuse here")
def test_the_daemon_behind_a_file_system_is_known(attach: Callable[..., object], tmp_path: Path, mapped: bool) -> None:
    """Opening a file waits for it, and so does reading, also by a page fault, which is no call."""
    source, mount = tmp_path / "source", tmp_path / "mount"
    for path in (source, mount):
        path.mkdir()
    (source / "settings").write_text("x")
    family = Family(attach)
    daemon = subprocess.Popen(["bindfs", "-f", source, mount])
    try:
        until(lambda: os.path.ismount(mount), 10)
        argv = [sys.executable, "-c", MAPPED, mount / "settings"] if mapped else ["cat", mount / "settings"]
        reader = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert reader.stdin
        assert reader.stdout
        if mapped:
            assert reader.stdout.readline() == b"mapped\n"
        daemon.send_signal(signal.SIGSTOP)
        reader.stdin.close()
        time.sleep(0.3)
        daemon.send_signal(signal.SIGCONT)
        assert reader.wait(20) == 0
        rows = family.slow(reader.pid, 1, waited_ns=200_000_000)
    finally:
        daemon.send_signal(signal.SIGCONT)
        subprocess.run(["umount", mount], check=False)
        daemon.kill()
        daemon.wait()
    assert set(zip(rows["fd_type"], rows["waker_pid"], rows["waker_comm"], strict=True)) == {
        (b"fuse", daemon.pid, b"bindfs")
    }
    assert (b"page_fault" in rows["syscall"]) == mapped


def test_a_call_that_blocks_with_long_pauses_is_one_call(attach: Callable[..., object]) -> None:
    family = Family(attach)
    child = subprocess.Popen([sys.executable, "-c", GAPS])
    rows = family.slow(child.pid, 3, b"write")
    assert child.wait(20) == 0
    assert len(rows) == 3
    assert set(zip(rows["syscall"], rows["fd_type"], strict=True)) == {(b"write", b"pipe")}
    assert np.all(rows["duration_ns"] > 280_000_000)


def test_threads_that_end_leave_nothing_behind(attach: Callable[..., object]) -> None:
    family = Family(attach, options={"SYSCALLS_THREADS": 4096})
    run(THREADS)
    run(LOCKS)
    assert family.attached.lost() == 0  # type: ignore[attr-defined]


def test_calls_of_32_bit_programs_have_their_own_numbers(attach: Callable[..., object], tmp_path: Path) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("32-bit programs of x86 only")
    at, size = 0x08048000, 84 + len(READER_32)
    head = b"\x7fELF\1\1\1".ljust(16, b"\0") + struct.pack(
        "<HHIIIIIHHHHHH", 2, 3, 1, at + 84, 52, 0, 0, 52, 32, 1, 0, 0, 0
    )
    program = tmp_path / "reader"
    program.write_bytes(head + struct.pack("<8I", 1, 0, at, at, size, size, 5, 4096) + READER_32)
    program.chmod(0o755)
    family = Family(attach)
    try:
        child = subprocess.Popen([program], stdin=subprocess.PIPE)
    except OSError as error:
        pytest.skip(f"no 32-bit programs here: {error}")
    assert child.stdin
    for _ in range(7):
        time.sleep(0.02)
        os.write(child.stdin.fileno(), b"x")
    time.sleep(0.02)
    child.stdin.close()
    assert child.wait(5) == 0
    reads = family.blocked(child.pid, b"read", 8)
    assert reads["count"].sum() == 8
    assert set(reads["nr"]) == {3}
    rows = family.attached.rows("slow_syscall")  # type: ignore[attr-defined]
    assert len(rows[(rows["pid"] == child.pid) & (rows["syscall"] == b"read")]) == 0


def test_blocked_time_is_summed_by_process(attach: Callable[..., object]) -> None:
    family = Family(attach)
    _, children = run(TURNS)
    for pid, times, each_ns in zip(children, (31, 17), (1_000_000, 2_000_000), strict=True):
        rows = family.blocked(pid, b"clock_nanosleep", times)
        allowed = family.attached.left_out()  # type: ignore[attr-defined]
        assert times - allowed <= rows["count"].sum() <= times
        assert rows["sum_ns"].sum() >= (times - allowed) * each_ns
    assert family.attached.lost() == 0  # type: ignore[attr-defined]


def test_waiting_is_not_slow(attach: Callable[..., object]) -> None:
    family = Family(attach)
    pid, _ = run(WAITS)
    family.blocked(pid, b"recvfrom", 17)
    slow = family.slow(pid, 0, b"recvfrom", b"read", b"splice", b"epoll_wait", b"wait4", b"clock_nanosleep")
    assert set(slow["fd_type"]) <= {b"file", b"directory"}  # of the program's start
    rows = family.attached.rows("syscall_latency")  # type: ignore[attr-defined]
    mine = rows[(rows["pid"] == pid) & (rows["basis"] == BLOCKED)]
    waited = mine[mine["kind"] == TABLES["syscall_latency"].code("kind", "waiting")]
    assert waited[waited["syscall"] == b"recvfrom"]["count"].sum() == 17
    assert waited[waited["syscall"] == b"read"]["count"].sum() == 34
    assert waited[waited["syscall"] == b"splice"]["count"].sum() == 17


def test_a_poll_of_one_socket_names_its_peer(attach: Callable[..., object]) -> None:
    """As a read with a time-out does, in most clients."""
    family = Family(attach)
    code = (
        "import socket, sys\ns = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5)\nfor _ in range(5):"
        " s.recv(1)"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        child = subprocess.Popen([sys.executable, "-c", code, str(port)])
        connection, _ = server.accept()
        for _ in range(5):
            time.sleep(0.02)
            connection.sendall(b"x")
        assert child.wait(5) == 0
    polls = family.blocked(child.pid, b"poll", 5)
    assert polls["count"].sum() == 5
    peer = make_peer(np.array([[*bytes(10), 255, 255, 127, 0, 0, 1]], np.uint8), np.array([port]))
    assert {p.tobytes() for p in polls["peer"]} == {peer.tobytes()}


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
    counted = rows["count"].sum()
    assert 10007 - family.attached.left_out() <= counted <= 10007  # type: ignore[attr-defined]
    assert rows["hist"].sum() == counted
    assert family.attached.lost() == 0  # type: ignore[attr-defined]
    pid, _ = run(LOCKS)
    slow = family.slow(pid, 13, b"flock", waited_ns=1)
    assert 13 - family.attached.left_out() <= len(slow) <= 13  # type: ignore[attr-defined]
    assert set(slow["basis"]) == {ALL}
    assert set(slow["ret"]) == {0}
    assert np.all(slow["duration_ns"] >= slow["blocked_ns"])


def test_full_counts_every_call_of_a_crowd(attach: Callable[..., object]) -> None:
    family = Family(attach, "full")
    _, children = run(CROWD)
    expected = {
        (pid, call): times * (101 + i)
        for i, pid in enumerate(children)
        for call, times in ((b"getppid", 1), (b"getuid", 2), (b"getegid", 1), (b"sched_yield", 1))
    }
    sleeps = dict.fromkeys([(pid, b"clock_nanosleep") for pid in children], 7)
    calls = [*{call for _, call in expected}, b"clock_nanosleep"]

    def mine(rows: np.ndarray) -> np.ndarray:
        return rows[np.isin(rows["pid"], children) & np.isin(rows["syscall"], calls) & (rows["basis"] == ALL)]

    total = sum(expected.values()) + sum(sleeps.values())
    rows = family.attached.wait("syscall_latency", mine, lambda r: r["count"].sum() >= total)  # type: ignore[attr-defined]
    seen: dict[tuple[int, bytes], int] = {}
    for row in rows:
        key = (int(row["pid"]), bytes(row["syscall"]))
        seen[key] = seen.get(key, 0) + int(row["count"])
    expected |= sleeps
    assert all(n <= expected[key] for key, n in seen.items())
    assert total - sum(seen.values()) <= family.attached.left_out()  # type: ignore[attr-defined]
    assert np.array_equal(rows["hist"].sum(axis=1), rows["count"])
    assert np.all(rows["proc_start_ns"] > 0)
    slept = rows[rows["syscall"] == b"clock_nanosleep"]
    assert slept["sum_ns"].sum() >= 61 * 7 * 1_000_000
    assert len({(r["pid"], r["syscall"], r["t_ns"]) for r in rows}) == len(rows)
    assert family.attached.lost() == 0  # type: ignore[attr-defined]


def test_sampling_windows_are_marked(attach: Callable[..., object]) -> None:
    family = Family(attach, "sampled")
    rows = family.sampled(2)
    assert rows["count"].min() > 100
    assert np.all((rows["sample_rate"] > 0) & (rows["sample_rate"] < 1))


def test_a_windows_share_is_that_of_its_own_interval(attach: Callable[..., object]) -> None:
    """Windows of changing length at every turn, so that one is open while the interval before is read out."""
    family = Family(attach, "sampled")
    source, window = family.attached.source, family.attached.window  # type: ignore[attr-defined]
    open_ns: dict[int, int] = {}

    def closed(took_ns: int) -> None:
        open_ns[source.live_since_ns] = open_ns.get(source.live_since_ns, 0) + took_ns
        window._length_ns, window._next_ns = window._length_ns % 80_000_000 + 20_000_000, 0

    window._closed.append((family.family, closed))
    rows = family.sampled(4)
    share = [open_ns[int(r["t_ns"] - r["interval_ns"])] / r["interval_ns"] for r in rows]
    assert rows["sample_rate"] == pytest.approx(share)


def test_no_turn_waits_for_the_end_of_a_window(attach: Callable[..., object]) -> None:
    """Open for ten seconds: turns come and go meanwhile, and it says when somebody must come back."""
    family = Family(attach, "sampled")
    source, window = family.attached.source, family.attached.window  # type: ignore[attr-defined]
    list(window.finish(boot_ns(), time.sleep))
    window._length_ns, window._next_ns = 10 * 10**9, 0
    list(window.drain(boot_ns()))
    assert window.busy and window.due_ns > boot_ns()
    for _ in range(100):
        list(source.drain(boot_ns()))
        list(window.drain(boot_ns()))
    assert window.busy and window.due_ns > boot_ns()
    list(window.finish(boot_ns(), time.sleep))
    assert not window.busy and not window.due_ns


def test_nothing_comes_when_detached(attach: Callable[..., object]) -> None:
    family = Family(attach)
    for fd in family.family.links.values():
        os.close(fd)
    family.family.links.clear()
    time.sleep(0.1)
    pid, _ = run(LOCKS)
    assert len(family.slow(pid, 0, b"flock")) == 0


@pytest.mark.parametrize("name", ["read", "flock", "epoll_wait"])
def test_calls_have_names(name: str) -> None:
    assert name.encode() in syscalls.names()


MANY_WAITS = """
import threading, time
def one():
    for _ in range(4): time.sleep(0.08)
threads = [threading.Thread(target=one) for _ in range(500)]
for t in threads: t.start()
for t in threads: t.join()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the waits are another user's")
def test_many_long_waits_of_one_user_leave_those_of_others(attach: Callable[..., object]) -> None:
    """Both processes are late and followed: each user's share is its own, and what is beyond it is counted."""
    family = Family(attach)
    code = "import time\nfor _ in range(13): time.sleep(0.08)"
    flood = subprocess.Popen([sys.executable, "-c", MANY_WAITS], user=65534)
    other = subprocess.Popen([sys.executable, "-c", code])
    watched = syscalls.WatchedProcesses(family.family)
    assert watched.add(flood.pid, 50_000_000)
    assert watched.add(other.pid, 50_000_000)
    assert (flood.wait(60), other.wait(60)) == (0, 0)

    def sleeps(rows: np.ndarray) -> np.ndarray:
        return rows[rows["syscall"] == b"clock_nanosleep"]

    rows = family.attached.wait("slow_syscall", sleeps, lambda rows: (rows["pid"] == other.pid).sum() >= 13)  # type: ignore[attr-defined]
    lost = losses(family.attached.rows("loss"))  # type: ignore[attr-defined]
    his = int((rows["pid"] == flood.pid).sum())
    assert (rows["pid"] == other.pid).sum() == 13
    assert 100 < his < 1500
    assert set(lost) == {"syscalls_shares"}
    assert his + lost["syscalls_shares"] >= 2000
