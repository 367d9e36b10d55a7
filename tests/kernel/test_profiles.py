"""On-demand profiles: what the programs count of a process that does a known number of things, and of nobody else; and
that they count nothing once detached.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from agent.binaries import nearest
from agent.common.clocks import boot_ns
from agent.investigate import rows
from agent.investigate.asleep import parse
from agent.investigate.profile import Counted, Profile
from agent.investigate.stacks import kernel_text, lock_text, places, user_text
from agent.kernel import bpf
from agent.kernel.asleep import asleep
from agent.kernel.kernel_source import KernelSource
from agent.kernel.loaded_families import Loaded, load, release
from agent.lab.stage.cgroups import Cgroups
from agent.probes import discover
from agent.tables import TABLES
from tests.kernel.local_attach import LocalAttacher
from tests.kernel.test_resources import LOOKS, controller, group, on_disk, start
from tests.patience import PATIENCE

__all__ = ["group", "on_disk"]  # fixtures

CALLS, FAILED, SLEEPS, CONNECTS, SYNCS = 211, 7, 13, 23, 17
SECOND = 1_000_000_000

#: Waits for its turn, does each thing so many times, and waits again.
WORK = f"""
import os, sys, time
file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
for _ in sys.stdin:
    for _ in range({CALLS}): os.getppid()
    for _ in range({FAILED}):
        try: os.rmdir("/nowhere/at/all")
        except OSError: pass
    for _ in range({SLEEPS}): time.sleep(0.02)
    for i in range({SYNCS}): os.pwrite(file, b"x" * 8192, 0); os.fsync(file)
    print("done", flush=True)
"""
#: Threads that write to one file, whose inode has one lock.
CROWD = """
import os, sys, threading
file, piece = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR), bytes(8 << 20)
def write():
    for _ in range(12): os.pwrite(file, piece, 0)
for _ in sys.stdin:
    threads = [threading.Thread(target=write) for _ in range(4)]
    [t.start() for t in threads]; [t.join() for t in threads]
    print("done", flush=True)
"""


@pytest.fixture(scope="module")
def kernel() -> Iterator[KernelSource]:
    loaded: Loaded = load([probe for probe in discover().values() if probe.profiling])
    for family in loaded.families.values():
        assert family.state == "attached", family.reason
        assert not family.links
    source = KernelSource(loaded)
    yield source
    source.close()
    release(loaded)


@contextmanager
def worker(program: str, path: Path) -> Iterator[tuple[int, Callable[[], None]]]:
    """Its pid, and what has it do its work."""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:

        def work() -> None:
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write("now\n")
            child.stdin.flush()
            assert child.stdout.readline() == "done\n"

        try:
            work()  # once, so that all is loaded
            yield child.pid, work
        finally:
            child.kill()


def profiled(
    kernel: KernelSource, wanted: tuple[str, ...], pid: int, meanwhile: Callable[[], None]
) -> tuple[Counted, int]:
    """What was counted, and when that ended."""
    profile = Profile(
        kernel, LocalAttacher(), kernel.loaded.families, wanted, [pid], boot_ns(), int(20 * SECOND * PATIENCE)
    )  # type: ignore[arg-type]
    assert not profile.reasons
    try:
        meanwhile()
    finally:
        end = boot_ns()
        profile.end(end)
    time.sleep(0.02)
    return profile.counted(), end


def lost(kernel: KernelSource) -> int:
    return sum(int(b.rows["count"].sum()) for b in kernel.drain(boot_ns()) if b.table == "loss")


def test_calls_of_one_process_are_counted_and_of_no_other(kernel: KernelSource, tmp_path: Path) -> None:
    with worker(WORK, tmp_path / "a") as (pid, work), worker(WORK, tmp_path / "b") as (_, beside):
        counted, _ = profiled(kernel, ("calls",), pid, lambda: (work(), beside())[0])
        table = {row["syscall"]: row for row in rows.calls(*counted.maps["calls_sums"]).rows}
        assert (table[b"getppid"]["count"], table[b"getppid"]["errors"]) == (CALLS, 0)
        assert (table[b"rmdir"]["count"], table[b"rmdir"]["errors"]) == (FAILED, FAILED)
        assert table[b"fsync"]["count"] == SYNCS
        assert {int(row["pid"]) for row in table.values()} == {pid}
        assert table[b"getppid"]["hist"].sum() == CALLS
        work()  # when nothing is attached any more
        counted, _ = profiled(kernel, (), pid, work)
        assert not counted.maps
    assert (
        bpf.HashMap(
            kernel.loaded.families["calls"].maps["calls_sums"],
            *(kernel.loaded.wire.dtype(n) for n in ("calls_key", "calls_value")),
        )
        .read()[0]
        .size
        == 0
    )
    assert lost(kernel) == 0


def test_where_a_process_sleeps(kernel: KernelSource, tmp_path: Path) -> None:
    """With the kernel's functions by name, and the program's as far as its frames lead; and what sleeps all the time,
    by what /proc says.
    """
    with worker(WORK, tmp_path / "a") as (pid, work), worker(WORK, tmp_path / "b") as (other, _):
        counted, end = profiled(kernel, ("offcpu",), pid, work)
        still = parse(other, asleep(other), set())
        text = Path(f"/proc/{pid}/maps").read_bytes()
        with open("/proc/kallsyms", "rb") as kallsyms:
            wanted = sorted({at for stack in counted.stacks.values() for at in stack if at >> 63})
            kernel_names = dict(zip(wanted, nearest.in_kernel([kallsyms.fileno()], wanted), strict=True))
        found = places(text, [at for stack in counted.stacks.values() for at in stack if not at >> 63])
        names = {at: _name(pid, place.span, place.offset) for at, place in found.items() if place.path.startswith("/")}
    who = {pid: counted.maps["offcpu_sums"][1]["proc"][0]}
    who[other] = who[pid]
    named = rows.FrameNames(
        lambda n: kernel_text(counted.stacks.get(n, ()), kernel_names),
        lambda n, _: user_text(counted.stacks.get(n, ()), found, names),
        lambda *_: "",
    )
    off = rows.off_cpu(*rows.gone(counted, end, who), still, {pid: SECOND, other: SECOND}, who, named).rows
    slept = off[off["syscall"] == b"clock_nanosleep"]
    assert slept["count"].sum() == SLEEPS
    assert SLEEPS * 20_000_000 <= slept["sum_ns"].sum() < 100 * SLEEPS * 20_000_000
    assert b"do_nanosleep" in slept["kernel_stack"][0] and b"bpf" not in slept["kernel_stack"][0]
    libc = slept["user_stack"][0]  # from glibc 2.41 on the call is made by a function that has no name outside
    assert b"nanosleep" in libc or libc.startswith(b"libc.so.6+0x"), libc
    synced = off[off["syscall"] == b"fsync"]
    assert len(synced) == 0 or b"fsync" in synced["kernel_stack"][0]
    (idle,) = off[(off["syscall"] == b"read") & (off["sum_ns"] == SECOND)]
    assert (idle["kind"], idle["count"]) == (TABLES["off_cpu"].code("kind", "waiting"), 1) and b"pipe" in idle[
        "kernel_stack"
    ]
    assert lost(kernel) == 0


def _name(pid: int, span: str, offset: int) -> str:
    fd = os.open(f"/proc/{pid}/map_files/{span}", os.O_RDONLY)
    try:
        return nearest.in_file([fd], [offset])[0]
    finally:
        os.close(fd)


def test_what_a_disk_does_and_for_whom(kernel: KernelSource) -> None:
    place = Path("/var/tmp") / f"tickscope-look-{os.getpid()}"  # on a disk, where /tmp may be none
    try:
        with worker(WORK, place) as (pid, work):
            counted, end = profiled(kernel, ("block",), pid, work)
    finally:
        place.unlink(missing_ok=True)
    if not len(counted.maps["block_sums"][0]):
        pytest.skip("no disk of this host was written to by fsync")
    disk = rows.block_io(*counted.maps["block_sums"], counted.maps["block_requests"][1], end, SECOND).rows
    mine = disk[(disk["pid"] == pid) & (disk["op"] == TABLES["block_io"].code("op", "write"))]
    assert mine["count"].sum() >= SYNCS and mine["bytes"].sum() >= SYNCS * 8192
    whole = disk[disk["op"] == TABLES["block_io"].code("op", "all")]
    assert whole["count"].sum() >= mine["count"].sum() and (whole["device"] != b"").all()
    assert (whole["hist"].sum(axis=1) == whole["count"]).all()
    assert (mine["max_ns"] <= mine["sum_ns"]).all() and (mine["max_ns"] > 0).all()


def test_a_lock_of_the_kernels_and_who_takes_it(kernel: KernelSource) -> None:
    if "contention_on_begin" not in kernel.loaded.families["contention"].programs:
        pytest.skip("this kernel does not tell of its locks (5.19)")
    place = Path("/var/tmp") / f"tickscope-crowd-{os.getpid()}"
    try:
        with worker(CROWD, place) as (pid, work):
            counted, _ = profiled(kernel, ("contention",), pid, work)
    finally:
        place.unlink(missing_ok=True)
    keys, values = counted.maps["contention_sums"]
    with open("/proc/kallsyms", "rb") as kallsyms:
        wanted = sorted(
            {at for n in keys["kernel_stack"].tolist() for at in counted.stacks.get(n, ())} | set(keys["lock"].tolist())
        )
        names = dict(zip(wanted, nearest.in_kernel([kallsyms.fileno()], wanted), strict=True))
    named = rows.FrameNames(
        lambda n: kernel_text(counted.stacks.get(n, ()), names),
        lambda *_: "",
        lambda at, n: lock_text(at, counted.stacks.get(n, ()), names),
    )
    locks = rows.lock_contention(keys, values, named).rows
    most = locks[0]
    assert most["pid"] == pid and most["sum_ns"] > 1_000_000
    assert most["lock"].startswith(b"taken by ") and b"write" in most["kernel_stack"]
    assert (most["max_ns"] <= most["sum_ns"]) and most["kind"]


def test_syns_and_their_answers(kernel: KernelSource) -> None:
    with (
        socket.create_server(("127.0.0.1", 0), backlog=64) as listener,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        port = listener.getsockname()[1]

        def connect() -> None:
            for _ in range(CONNECTS):
                with socket.create_connection(("127.0.0.1", port)):
                    listener.accept()[0].close()
            socket.create_connection(other.getsockname()).close()

        counted, _ = profiled(kernel, ("synack", "contention"), os.getpid(), connect)
        connect()
    table = rows.syn_ack(*counted.maps["synack_sums"]).rows
    (mine,) = table[table["sport"] == port]
    assert mine["count"] == CONNECTS and mine["hist"].sum() == CONNECTS
    assert 0 < mine["max_ns"] < SECOND and mine["netns"] == os.stat("/proc/self/ns/net").st_ino


def test_a_profile_that_nobody_ends_counts_no_longer_than_it_was_to(kernel: KernelSource, tmp_path: Path) -> None:
    """As of an agent that was stopped: its programs stay attached, and do nothing."""
    with worker(WORK, tmp_path / "a") as (pid, work):
        profile = Profile(kernel, LocalAttacher(), kernel.loaded.families, ("calls",), [pid], boot_ns(), 1)  # type: ignore[arg-type]
        time.sleep(0.1)
        work()
        profile.end(boot_ns())
        keys, _ = profile.counted().maps["calls_sums"]
    assert np.count_nonzero(keys["pid"]) == 0


def test_memory_that_is_made_room_in_and_pages_that_come_from_disk(
    kernel: KernelSource, group: Cgroups, on_disk: Path
) -> None:
    place, modern = controller(group, "memory")
    with start(group, LOOKS, str(on_disk / "table")) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
            (place / ("memory.max" if modern else "memory.limit_in_bytes")).write_text(str(40 << 20))
            counted, end = profiled(kernel, ("offcpu", "reclaim"), child.pid, lambda: time.sleep(1.5 * PATIENCE))
        finally:
            child.kill()
    stalls = rows.memory_stall(*counted.maps["reclaim_sums"]).rows
    assert set(stalls["pid"].tolist()) == {child.pid}
    made = stalls[stalls["kind"] == TABLES["memory_stall"].code("kind", "reclaim")]
    assert made["count"].sum() > 10 and made["pages"].sum() > 10 and made["sum_ns"].sum() > 0
    keys, _ = rows.gone(counted, end, {child.pid: counted.maps["offcpu_sums"][1]["proc"][0]})
    with open("/proc/kallsyms", "rb") as kallsyms:
        wanted = sorted({at for stack in counted.stacks.values() for at in stack if at >> 63})
        names = dict(zip(wanted, nearest.in_kernel([kallsyms.fileno()], wanted), strict=True))
    faulted = [
        kernel_text(counted.stacks.get(int(key["kernel_stack"]), ()), names) for key in keys if key["nr"] == 0xFFFF
    ]
    assert any("fault" in text for text in faulted), faulted


#: Computes for half a second in one thread, and writes down what it ran.
COMPUTE = """
import sys, time
for _ in sys.stdin:
    begun, end = time.process_time_ns(), time.monotonic() + 0.5
    while time.monotonic() < end: sum(range(2000))
    open(sys.argv[1], "w").write(str(time.process_time_ns() - begun))
    print("done", flush=True)
"""


def test_where_a_process_runs(kernel: KernelSource, tmp_path: Path) -> None:
    """All of what it ran, by the thread that ran, and by where its code is; and of nobody else."""
    with worker(COMPUTE, tmp_path / "a") as (pid, work), worker(COMPUTE, tmp_path / "b") as (_, beside):
        counted, _ = profiled(kernel, ("oncpu",), pid, lambda: (work(), beside())[0])
        code = places(Path(f"/proc/{pid}/maps").read_bytes(), {at for stack in counted.stacks.values() for at in stack})
    keys, values = counted.maps["oncpu_sums"]
    named = rows.FrameNames(lambda _: "", lambda n, _: user_text(counted.stacks.get(n, ()), code, {}), lambda *_: "")
    table = rows.on_cpu(keys, values, named).rows
    assert {(int(row["pid"]), int(row["tid"])) for row in table} == {(pid, pid)}
    ran = int((tmp_path / "a").read_text())
    assert 0.95 * ran <= values["sum_ns"].sum() <= 1.05 * ran + 20_000_000
    assert values["sum_ns"][keys["nr"] == 0xFFFF].sum() > 0.8 * ran, "its own code, and no call"
    assert b"python" in table[0]["user_stack"] and table[0]["syscall"] == b""
    assert lost(kernel) == 0
