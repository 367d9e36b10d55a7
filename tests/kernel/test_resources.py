"""Real quotas, limits and file systems that run short, and what is polled of them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from agent.batch import make
from agent.common import process_stat
from agent.kernel.spaces import spaces
from agent.lab.stage.cgroups import Cgroups, remove
from agent.resources.resource_source import Resources
from agent.resources.spaces import Space
from agent.tables import TABLES

TABLE = TABLES["resource"]
BURN = "while True: pass"
#: Maps a file of 64 MiB and looks at its pages again and again; grows when it is told to.
LOOKS = """
import mmap, random, sys, threading, time
with open(sys.argv[1], 'wb') as file: file.write(bytes(64 << 20))
made = open(sys.argv[1], 'rb')
table = mmap.mmap(made.fileno(), 0, prot=mmap.PROT_READ)
kept = []
def grow():
    sys.stdin.readline()
    while True: kept.append(bytearray(b'x' * (1 << 20)))
threading.Thread(target=grow, daemon=True).start()
print('ready', flush=True)
while True:
    sum(table[random.randrange(64 << 8) * 4096] for _ in range(100)); time.sleep(0.002)
"""


@pytest.fixture
def group() -> Iterator[Cgroups]:
    groups = Cgroups(f"tickscope-test-{os.getpid()}")
    groups.make("it")
    yield groups
    for made in groups.made:
        for _ in range(50):
            try:
                remove(made)
                break
            except OSError:
                time.sleep(0.02)


def start(groups: Cgroups, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", *arguments],
        preexec_fn=lambda: groups.enter("it"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def watched(child: subprocess.Popen[str]) -> Resources:
    polled, now = Resources(), process_stat.stat(child.pid)
    assert now is not None
    rows = make("limiter_decision", 1, pid=child.pid, proc_start_ns=now.start_tick * 10_000_000, comm=b"it")
    list(polled(rows, time.clock_gettime_ns(time.CLOCK_BOOTTIME)))
    return polled


def until(polled: Resources, kind: str, enough: Callable[[np.ndarray], bool], limit_s: float = 15) -> np.ndarray:
    rows, end = TABLE.empty(0), time.monotonic() + limit_s
    while time.monotonic() < end and not enough(rows):
        time.sleep(0.05)
        for batch in polled.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME)):
            if batch.table == TABLE.name:
                rows = np.concatenate([rows, batch.rows[batch.rows["kind"] == TABLE.code("kind", kind)]])
    return rows[rows["pid"] > 0]


def controller(groups: Cgroups, name: str) -> tuple[Path, bool]:
    found = groups.controller(name, "it")
    if found is None:
        pytest.skip(f"no cgroup controller {name}")
    return found


def test_a_quota(group: Cgroups) -> None:
    place, modern = controller(group, "cpu")
    with start(group, BURN) as child:
        try:
            polled = watched(child)
            assert not len(until(polled, "cpu", lambda rows: False, 1.2))
            if modern:
                (place / "cpu.max").write_text("5000 100000")
            else:
                (place / "cpu.cfs_period_us").write_text("100000")
                (place / "cpu.cfs_quota_us").write_text("5000")
            rows = until(polled, "cpu", lambda rows: len(rows) >= 4)
        finally:
            child.kill()
    last = rows[1:]
    assert (last["pid"] == child.pid).all() and {bytes(o) for o in last["object"]} == {str(place).encode()}
    assert (last["waited_ns"] > 0.6 * last["interval_ns"]).all()
    assert (last["events"] >= 0.6 * last["limit"]).all() and (last["limit"] > 0).all()


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """Not where /tmp may be: the pages of a tmpfs cannot be given up."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        yield Path(name)


def test_memory_that_goes_and_comes_and_is_not_enough(group: Cgroups, on_disk: Path) -> None:
    place, modern = controller(group, "memory")
    file = place / ("memory.max" if modern else "memory.limit_in_bytes")
    with start(group, LOOKS, str(on_disk / "table")) as child:
        try:
            assert child.stdout is not None and child.stdin is not None and child.stdout.readline() == "ready\n"
            polled = watched(child)
            assert not len(until(polled, "memory", lambda rows: False, 1.2))
            file.write_text(str(48 << 20))
            rows = until(polled, "memory", lambda rows: int(rows["events"].clip(0).sum()) > 50)
            assert int(rows["events"].clip(0).sum()) > 50 and (rows["limit"][rows["events"] > 0] == 48 << 20).all()
            child.stdin.write("\n")
            child.stdin.flush()
            killed = until(polled, "oom", lambda rows: len(rows) > 0)
        finally:
            child.kill()
    assert len(killed) == 1 and killed["pid"][0] == child.pid and killed["events"][0] >= 1
    assert bytes(killed["object"][0]).startswith(str(place).encode())


def test_a_disk_that_fills_in_another_mount_namespace(tmp_path: Path) -> None:
    script = f'mount -t tmpfs -o size=4m none {tmp_path} && exec {sys.executable} -c "{FILLS}" {tmp_path}'
    command = ["unshare", "-m", "sh", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None and child.stdin is not None
            for line, full in (("ready\n", False), ("full\n", True)):
                assert child.stdout.readline() == line
                reported = [space for space in Space.parse(spaces(child.pid)) if space.point == bytes(tmp_path)]
                assert [(space.limit, space.full) for space in reported] == [(4 << 20, full)]
                child.stdin.write("\n")
                child.stdin.flush()
        finally:
            child.kill()


FILLS = """
import sys
file = open(sys.argv[1] + '/file', 'wb', buffering=0)
print('ready', flush=True)
sys.stdin.readline()
try:
    while True: file.write(bytes(4096))
except OSError: pass
print('full', flush=True)
sys.stdin.readline()
"""
