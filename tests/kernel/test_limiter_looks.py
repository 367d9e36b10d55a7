"""The kernel's looks at a bucket end with the program that it is in, however the process goes on."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from agent.probes.beside.go_looks import gates
from agent.probes.beside.go_rates import BucketPlace
from tests.kernel.limiter_rig import Watch

_AT = 0x7E0000000000
#: Has words like a bucket's where it is told, and sleeps again and again; another program with the same words after a
#: line.
_PROGRAM = """
import ctypes, mmap, os, select, struct, sys, time
libc = ctypes.CDLL(None)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
at = int(sys.argv[1], 16)
assert libc.mmap(at, 4096, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10, -1, 0) == at
ctypes.memmove(at, struct.pack("<6Q", 0, int(sys.argv[2]), 20, 30, 40, 50), 48)
print("there", flush=True)
while not select.select([0], [], [], 0.001)[0]:
    pass
os.read(0, 1)
os.execv(sys.executable, [*sys.orig_argv[:-1], "2"])
"""


def test_looks_end_where_the_process_becomes_another_program(watch: Callable[..., Watch]) -> None:
    w = watch()
    found = list[np.ndarray]()
    w.attached.source.listen("limiter_looks", lambda records: found.append(records.copy()))
    looks = w.limiters.looks
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, hex(_AT), "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        start_ns = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]) * 10_000_000

        def seen(exec_id: int, for_s: float) -> set[int]:
            """First words of what is told of the process as that program."""
            looks._watch({process.pid: [BucketPlace(process.pid, _AT, False, start_ns, exec_id)]})
            w.attached.pump()
            found.clear()
            end = time.monotonic() + for_s
            while time.monotonic() < end:
                w.attached.pump()
                time.sleep(0.005)
            return {int(one["words"][1]) for records in found for one in records if one["pid"] == process.pid}

        try:
            assert process.stdout.readline() == b"there\n"
            mine = next(number for number in range(512) if seen(number, 0.02))
            assert seen(mine, 0.1) == {1}
            process.stdin.write(b"\n")
            assert process.stdout.readline() == b"there\n"
            assert seen(mine, 0.3) == set()
            assert seen(mine + 1, 0.3) == {2}
            looks._watch({})
            assert looks._link < 0
        finally:
            process.kill()


def test_no_more_than_four_thousand_looks_a_second_in_all() -> None:
    for limiters in range(1, 1025):
        assert all(limiters * 1e9 / ns <= 4000 for ns in gates(limiters))
