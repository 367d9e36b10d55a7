"""An on-demand profile at a thread that owes an answer: what it sleeps in, until when, and who wakes it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from agent.common.clocks import boot_ns
from agent.investigate import rows
from agent.investigate.pending_thread import PendingThread, PendingThreads, sleeper
from agent.investigate.profile import Profile
from agent.kernel.asleep import asleep
from agent.kernel.kernel_source import KernelSource
from agent.kernel.loaded_families import load, release
from agent.kernel.opening import open_proc
from agent.kernel.steps import Steps
from agent.probes import discover
from agent.probes.syscalls import names
from agent.tables import TABLES
from tests.kernel.local_attach import LocalAttacher
from tests.patience import PATIENCE, until

SECOND = 1_000_000_000
#: Its first thread waits for a lock that its second one holds until there is a line of input; or for a child; or
#: sleeps.
WAITS = {
    "futex": (
        "import sys, threading\nlock = threading.Lock(); lock.acquire()\ndef hold(): print(threading.get_native_id(),"
        " flush=True); sys.stdin.readline(); lock.release();"
        " sys.stdin.readline()\nthreading.Thread(target=hold).start(); lock.acquire()"
    ),
    "wait4": "import subprocess, sys\nprint(0, flush=True); subprocess.run(['sh', '-c', 'read x'])",
    "poll": "import select\nprint(0, flush=True)\nwhile True: select.poll().poll(60)",
    "clock_nanosleep": "import time\nprint(0, flush=True); time.sleep(600)",
}


@pytest.fixture(scope="module")
def kernel() -> Iterator[KernelSource]:
    source = KernelSource(load([discover()["offcpu"]]))
    yield source
    source.close()
    release(source.loaded)


class Observed:
    """The helper's lines, read here."""

    def threads(self, pid: int, tid: int) -> Steps[bytes]:
        return asleep(pid, str(tid))
        yield


@contextmanager
def waiting(program: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that sleeps, and the thread of which it said that it will wake it."""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            other = int(child.stdout.readline())
            until(lambda: sleeper(child.pid, child.pid, asleep(child.pid)) is not None, 10)
            time.sleep(0.2)  # not a multiple of "poll": a profile would begin while it is awake
            yield child, other
        finally:
            child.kill()


def profiled(
    kernel: KernelSource, pid: int, wake: bool, child: subprocess.Popen[str]
) -> tuple[list[PendingThread], int]:
    """What is reported of its first thread after a look of 0.6 s, and how long after the look's begin it was woken,
    ns.
    """
    begun, woken = boot_ns(), 0
    profile = Profile(kernel, LocalAttacher(), kernel.loaded.families, ("offcpu",), [pid], begun, 60 * SECOND)  # type: ignore[arg-type]
    pending = PendingThreads()
    pending.begin(Observed(), pid, pid, begun)  # type: ignore[arg-type]
    try:
        time.sleep(0.3)
        if wake:
            woken = boot_ns() - begun
            assert child.stdin is not None
            child.stdin.write("x\n")
            child.stdin.flush()
        time.sleep(0.3 * PATIENCE)
    finally:
        profile.end(boot_ns())
    time.sleep(0.02)
    return [one for one in pending.rows_of(profile.counted(), boot_ns()) if isinstance(one, PendingThread)], woken


@pytest.mark.parametrize("call", ["futex", "wait4", "clock_nanosleep"])
def test_what_it_sleeps_in_until_the_end(kernel: KernelSource, call: str) -> None:
    with waiting(WAITS[call]) as (child, _):
        (one,), _ = profiled(kernel, child.pid, False, child)
    assert (one.pid, one.tid, one.by_pid) == (child.pid, child.pid, 0) and one.ns >= 0.6 * SECOND
    dtype = kernel.loaded.wire.dtype
    keys, values = np.zeros(0, dtype("offcpu_key")), np.zeros(0, dtype("offcpu_value"))
    named = rows.FrameNames(str, lambda *_: "", lambda *_: "")
    off = rows.off_cpu(keys, values, [one], {child.pid: SECOND}, {child.pid: np.zeros(1, dtype("proc"))[0]}, named).rows
    assert (off["syscall"][0], off["tid"][0], off["sum_ns"][0]) == (call.encode(), child.pid, one.ns)
    assert off["waker_pid"][0] == TABLES["off_cpu"].by_name["waker_pid"].null


def test_who_lets_go_of_the_lock(kernel: KernelSource) -> None:
    with waiting(WAITS["futex"]) as (child, other):
        (one, *_), woken = profiled(kernel, child.pid, True, child)
    assert (one.by_pid, one.by_tid) == (child.pid, other) and one.by_comm.startswith(b"python")
    assert woken <= one.ns < woken + 0.2 * SECOND * PATIENCE


def test_a_lock_that_is_checked_again_and_again(kernel: KernelSource) -> None:
    """As a virtual machine's monitors are: it is reported up to each time, and after eight no more."""
    with waiting(WAITS["poll"]) as (child, _):
        found, _ = profiled(kernel, child.pid, False, child)
    assert len(found) == 8 and {one.by_pid for one in found} != {child.pid}
    assert (np.diff([one.ns for one in found]) > 0).all() and 0.4 * SECOND <= found[-1].ns <= 0.6 * SECOND * PATIENCE


def test_who_computes_where_an_interrupt_wakes_it_is_not_who_did(kernel: KernelSource) -> None:
    """On the one processor of both there is always somebody to be taken for it."""
    rarely = WAITS["poll"].replace("60", "300")
    with (
        waiting(rarely) as (child, _),
        subprocess.Popen(
            [sys.executable, "-c", "print(0, flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
        ) as busy,
    ):
        try:
            assert busy.stdout is not None and busy.stdout.readline()
            for pid in (child.pid, busy.pid):
                os.sched_setaffinity(pid, {max(os.sched_getaffinity(0))})
            profiles = (profiled(kernel, child.pid, False, child)[0] for _ in range(5))
            found = next((one for one in profiles if one), [])  # none where it did not sleep when the look began
        finally:
            busy.kill()
    assert found and busy.pid not in {one.by_pid for one in found}
    assert {one.by_comm.rstrip(b"\0") for one in found if not one.by_pid} <= {b"interrupt", b""}  # b"": it slept on


def test_a_thread_behind_many_others() -> None:
    """It is the last one of 300 that owes an answer."""
    many = (
        "import threading, time\nfor n in range(300): last = threading.Thread(target=time.sleep, args=(600,));"
        " last.start()\nprint(last.native_id, flush=True)"
    )
    with waiting(many) as (child, last):
        text = opened(child.pid, last)
    one = sleeper(child.pid, last, text)
    assert one is not None and one.nr != 0xFFFF and text.count(b"\n") == 0


def opened(pid: int, tid: int) -> bytes:
    """As the helper opens it."""
    fd = open_proc(pid, f"asleep:{tid}")
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def test_one_that_sleeps_for_each_request_is_reported_for_all_of_its_sleeps(kernel: KernelSource) -> None:
    """And with them only: what it waits for between them is no sleep of its own."""
    with waiting("import select, time\nprint(0, flush=True)\nwhile True: time.sleep(0.15); select.poll().poll(25)") as (
        child,
        _,
    ):
        found, _ = profiled(kernel, child.pid, False, child)
    assert names()[found[0].nr] == b"clock_nanosleep" and (np.diff([one.ns for one in found]) > 0).all()
    assert len(found) > 2 and 0.35 * SECOND <= found[-1].ns <= 0.6 * SECOND * PATIENCE


def test_a_child_that_ends(kernel: KernelSource) -> None:
    with waiting(WAITS["wait4"]) as (child, _):
        (one, *_), woken = profiled(kernel, child.pid, True, child)
    assert one.by_pid not in (0, child.pid) and woken <= one.ns < woken + 0.2 * SECOND * PATIENCE
