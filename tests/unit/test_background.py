"""The agent's place behind what it observes."""

from __future__ import annotations

import ctypes as ct
import os
import platform
import struct
import subprocess
import sys

from agent.posix import background

_SYS_SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}[os.uname().machine]


def attributes(pid: int) -> tuple[int, int, int]:
    """(policy, nice, slice in ns) of a process."""
    out = ct.create_string_buffer(48)
    assert ct.CDLL(None).syscall(_SYS_SCHED_GETATTR, pid, out, len(out), 0) == 0
    _, policy, _, nice, _, runtime = struct.unpack_from("<IIQiIQ", out.raw)
    return policy, nice, runtime


def test_a_process_that_gives_way_and_its_children() -> None:
    script = """
import os, subprocess, sys
os.nice(3)
from agent.posix import background
background.give_way()
child = subprocess.Popen(["sleep", "60"])
print(os.getpid(), child.pid, flush=True)
sys.stdin.read()
child.kill()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for pid in map(int, process.stdout.readline().split()):
            policy, nice, runtime = attributes(pid)
            assert (policy, nice) == (os.SCHED_BATCH, 3)
            if tuple(map(int, platform.release().split("-")[0].split(".")[:2])) >= (6, 12):
                assert runtime == background._LONG_NS
        process.communicate("")


def test_a_process_that_hurries_for_a_while() -> None:
    script = """
import os
from agent.posix import background
seen = [background.hurry()]
background.give_way()
seen += [background.hurry(), os.sched_getscheduler(0)]
background.give_way()
print(seen + [os.sched_getscheduler(0)])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([False, True, os.SCHED_OTHER, os.SCHED_BATCH])
