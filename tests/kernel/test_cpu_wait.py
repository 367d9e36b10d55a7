"""Waits for a processor: who waited, and who ran instead."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable

from agent.kernel import bpf

BURN = "import os, sys\nos.sched_setaffinity(0, {0})\nopen('/proc/self/comm', 'w').write(sys.argv[1])\nwhile True: pass"
#: Sleeps, and works a little, on the same processor.
WORK = """
import os, sys, time
os.sched_setaffinity(0, {0})
open('/proc/self/comm', 'w').write('meek')
os.nice(19)
until = time.monotonic() + 30
while time.monotonic() < until:
    time.sleep(0.001)
    sum(range(200_000))
"""


def start(code: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code, *arguments])


def test_who_ran_instead_is_named(attach: Callable) -> None:
    attached = attach("syscalls")
    hog = start(BURN, "greedy")
    meek = start(WORK)
    watched = attached.loaded.families["syscalls"].maps["syscalls_watched"]
    bpf.update(watched, struct.pack("<I", meek.pid), struct.pack("<Q", 1))
    try:
        rows = attached.wait(
            "cpu_wait",
            lambda r: r[(r["pid"] == meek.pid) & (r["by_pid"] == hog.pid)],
            lambda r: int(r["wait_ns"].sum()) > 200_000_000,
        )
    finally:
        hog.kill()
        hog.wait()
        meek.kill()
        meek.wait()
    assert int(rows["wait_ns"].sum()) > 200_000_000
    assert set(rows["by_comm"]) == {b"greedy"} and set(rows["comm"]) <= {b"meek", b"python"}
    single = attached.rows("cpu_delay")
    single = single[single["pid"] == meek.pid]
    assert len(single) and (single["tid"] == meek.pid).all() and (single["duration_ns"] >= 4_000_000).all()
    assert (single["by_pid"] == hog.pid).any()  # whoever else runs on this machine may be to blame, too


def test_without_the_program_nothing_comes(attach: Callable) -> None:
    attached = attach("syscalls")
    os.close(attached.loaded.families["syscalls"].links.pop("syscalls_on_switch"))
    hog, meek = start(BURN, "greedy"), start(WORK)
    try:
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            attached.pump()
            time.sleep(0.02)
    finally:
        hog.kill()
        hog.wait()
        meek.kill()
        meek.wait()
    for table in ("cpu_wait", "cpu_delay"):  # of others something may have come before it was detached
        assert not set(attached.rows(table)["pid"].tolist()) & {hog.pid, meek.pid}
