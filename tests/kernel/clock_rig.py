"""The clock family and the clock watch running for real, and programs that step clocks by at most 0.3 ms (times COARSE)
and undo it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from agent.clock import first, sample, watch_process
from agent.clock.history import History
from agent.kernel.kernel_source import KernelSource
from agent.kernel.loaded_families import load, release
from agent.kernel.probe import Parts
from agent.posix.child import fork
from agent.probes import discover
from agent.tables import TABLES
from agent.targets.targets import Targets
from tests.kernel.local_attach import LocalAttacher
from tests.lab import sockets
from tests.patience import COARSE, until

#: What the stepping programs begin with. step(HOW, ns) moves the wall clock through that call.
PROLOGUE = """
import ctypes, os, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
raw = libc.syscall; raw.restype = ctypes.c_long
TIMEX = "<I4xqqqqi4xqqqqqqqqi4xqqqqqi44x"
def timex(modes=0, offset=0, freq=0, status=0, constant=0, seconds=0, part=0, tick=0):
    words = modes, offset, freq, 0, 0, status, constant, 0, 0, seconds, part, tick
    return ctypes.create_string_buffer(struct.pack(TIMEX, *words, *[0] * 9), 208)
def offset(by):
    return timex(0x2100, seconds=by // 10**9, part=by % 10**9)
def pair(ns, per):
    return struct.pack("<qq", ns // 10**9, ns % 10**9 // per)
base, ahead = time.time_ns() - time.monotonic_ns(), 0
def step(how, by):
    if how == "adjtimex": return libc.adjtimex(offset(by))
    if how == "clock_adjtime": return libc.clock_adjtime(0, offset(by))
    if how == "raw_clock_adjtime": return raw(305, 0, offset(by))
    if how == "raw_adjtimex": return raw(159, offset(by))
    global ahead
    try: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # nothing comes between reading and setting
    except PermissionError: pass  # it may not set a clock either
    ahead += by  # kept, so that the time between reading and setting does not add up over many steps
    target = time.monotonic_ns() + base + ahead + 15_000
    if how == "clock_settime": return libc.clock_settime(0, pair(target, 1))
    if how == "settimeofday": return libc.settimeofday(pair(target, 1000), None)
    if how == "raw_clock_settime": return raw(227, 0, pair(target, 1))
    if how == "raw_settimeofday": return raw(164, pair(target, 1000), None)
"""


class Rig:
    """Everything that runs for the clock in an agent, drained by the test.

    probes False: the clock watch alone. libc False: no uprobes. detached: tracepoint programs to take off again.
    without: helpers that the kernel is taken not to have, as older ones do not.
    """

    def __init__(
        self,
        directory: Path,
        *,
        probes: bool = True,
        libc: bool = True,
        detached: tuple[str, ...] = (),
        without: tuple[str, ...] = (),
    ) -> None:
        self.path = directory / "notices.sock"
        os.chmod(directory, 0o755)
        self.watch = watch_process.start(fork("watch", first.serve), sockets.notices(self.path), 65534, 65534)
        self.history = History()
        self.attacher = LocalAttacher()
        probe = dataclasses.replace(discover()["clock"], options={f"FUNC_{name}": 0 for name in without})
        self.loaded = load([probe] if probes else [])
        self.kernel = KernelSource(self.loaded)
        if probes:
            family = self.loaded.families["clock"]
            assert family.state == "attached", family.reason
            self.watch.begin(family.maps["clock_last"])
            self.targets = Targets(self.attacher, self.kernel)
            for name in detached:
                os.close(family.links.pop(name))
            if not libc:
                family.programs.pop("clock_out")
            assert probe.setup is not None
            found = probe.setup(
                family, self.kernel, self.attacher, self.targets, Parts(watch=self.watch, history=self.history)
            )
            self.sources = [self.kernel, self.targets, *found]
            self.targets.start()
        else:
            from agent.clock.clock_source import ClockSource

            self.watch.begin(-1)
            self.sources = [ClockSource(self.watch, self.history)]
        self.subscriber = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.subscriber.connect(str(self.path))
        self.subscriber.setblocking(False)
        self._line = b""
        self._rows: dict[str, list[np.ndarray]] = {}
        self.settle()
        self.baseline = sample.read().real_mono_ns

    def pump(self) -> None:
        for source in self.sources:
            for batch in source.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME)):  # type: ignore[attr-defined]
                self._rows.setdefault(batch.table, []).append(batch.rows)

    def settle(self, seconds: float = 0.4) -> None:
        """For so long, and on until all that was seen has its row."""
        end, clock = time.monotonic() + seconds, self.sources[-1]
        while time.monotonic() < end or (clock._join.pending and time.monotonic() < end + 30):  # type: ignore[attr-defined]
            self.pump()
            time.sleep(0.01)

    def until(self, what: Callable[[], object]) -> None:
        until(what, why=self.watch.state, turn=self.pump)

    def rows(self, table: str = "clock_change") -> np.ndarray:
        return np.concatenate([TABLES[table].empty(0), *self._rows.get(table, [])])

    def python(self, script: str, *args: str) -> tuple[int, str]:
        """Runs a program to its end while pumping; (pid, its output)."""
        child = subprocess.Popen([sys.executable, "-c", PROLOGUE + script, *args], stdout=subprocess.PIPE, text=True)
        while child.poll() is None:
            self.pump()
            time.sleep(0.005)
        out = child.communicate()[0]
        assert child.returncode == 0, out
        self.settle()
        return child.pid, out

    def of(self, pid: int, *others: int) -> np.ndarray:
        """What this process did; with NULL_I64 also what nobody was seen to do. (Other tests step this machine's clock
        too.)
        """
        rows = self.rows()
        return rows[np.isin(rows["pid"], (pid, *others))]

    def lost(self) -> int:
        return int(self.rows("loss")["count"].sum())

    def notices(self) -> list[dict[str, object]]:
        """Those since the last call."""
        try:
            while data := self.subscriber.recv(1 << 16):
                self._line += data
        except BlockingIOError:
            pass
        *lines, self._line = self._line.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Puts the wall clock back to where it was, to the nanosecond that can be read, and stops everything."""
        away = self.baseline - sample.read().real_mono_ns
        allowed = (
            500_000 if COARSE == 1 else 100_000_000
        )  # an emulated machine may take that long from reading a time to setting it
        assert abs(away) < allowed, f"the tests moved the clock by {away} ns"
        subprocess.run(
            [sys.executable, "-c", PROLOGUE + "sys.exit(step('clock_adjtime', int(sys.argv[1])) < 0)", str(away)],
            check=True,
        )
        self.subscriber.close()
        for source in reversed(self.sources):
            source.close()  # type: ignore[attr-defined]
        self.attacher.close()
        release(self.loaded)
        self.watch.close()
