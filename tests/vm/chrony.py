"""In the VM: a real chronyd that sets its clock after a scripted server, and each call that it makes, as a kernel probe
that is not the agent's sees it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

from agent.clock import timex
from tests.lab.ntpserver import NtpServer

_TRACING = Path("/sys/kernel/tracing")
#: Of do_adjtimex(struct __kernel_timex *), include/uapi/linux/timex.h.
_PROBE = (
    "tickscope_test/adjtimex do_adjtimex modes=+0(%di):x32 offset=+8(%di):s64 freq=+16(%di):s64 status=+40(%di):s32"
    " s=+72(%di):s64 part=+80(%di):s64 tick=+88(%di):s64"
)
_LINE = re.compile(r"-(\d+) +\[\d+\] .* adjtimex: (.*)")
#: What was asked of the kernel, by field of struct timex; ``s`` and ``part`` are its time.
Call = dict[str, int]


class Calls:
    """All calls of do_adjtimex while it is entered."""

    def __enter__(self) -> Calls:
        self._define(f"p:{_PROBE}")
        self._instance = _TRACING / "instances/tickscope_test"
        self._instance.mkdir()
        self._enable("1")
        return self

    def __exit__(self, *_: object) -> None:
        self._enable("0")
        self._instance.rmdir()
        self._define(f"-:{_PROBE.split(maxsplit=1)[0]}")

    def _define(self, line: str) -> None:
        fd = os.open(
            _TRACING / "kprobe_events", os.O_WRONLY | os.O_APPEND
        )  # an open() to append also seeks, which it refuses
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)

    def _enable(self, value: str) -> None:
        (self._instance / "events/tickscope_test/adjtimex/enable").write_text(value)

    def of(self, pid: int) -> list[Call]:
        """A process' calls, oldest first."""
        lines = filter(None, map(_LINE.search, (self._instance / "trace").read_text().splitlines()))
        return [
            {k: int(v, 0) for k, _, v in (word.partition("=") for word in line[2].split()[1:])}
            for line in lines
            if int(line[1]) == pid
        ]


class Server:
    """A process that answers on ``port`` with a time ahead_ns ahead of what the wall clock said at first, and that
    nobody sets.
    """

    def __init__(self, ahead_ns: int) -> None:
        self._base = time.time_ns() + ahead_ns - time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        reading, writing = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            try:
                server = NtpServer(stratum=1, clock=self.time_ns)
                os.write(writing, server.where.encode())
                signal.pause()
            finally:
                os._exit(1)
        os.close(writing)
        self.port = int(os.read(reading, 64).rpartition(b":")[2])
        os.close(reading)

    def time_ns(self) -> int:
        return self._base + time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def start(program: str, home: Path, port: int, settings: str) -> tuple[subprocess.Popen[bytes], Path]:
    """chronyd as root that follows a server on loopback as fast as it may, with more lines of chrony.conf; and its
    log.
    """
    config, log = home / "chrony.conf", home / "chronyd.log"
    config.write_text(
        f"server 127.0.0.1 port {port} minpoll 0 maxpoll 0 iburst\nport 0\ncmdport 0\nbindcmdaddress /\npidfile"
        f" {home}/chronyd.pid\nuser root\nrtcsync\n{settings}\n"
    )
    with log.open("wb") as out:
        return (
            subprocess.Popen([program, "-d", "-f", str(config)], stdin=subprocess.DEVNULL, stdout=out, stderr=out),
            log,
        )


def changes(calls: list[Call], state: timex.Timex) -> list[tuple[str, int | None, tuple[int, int]]]:
    """What these successful calls did, starting from a state (ntp_adjtimex and process_adjtimex_modes in the kernel's
    kernel/time/ntp.c): kind, what was asked in ns, and the rates before and after in ppb. Nothing for what only reads,
    or writes what is so already.
    """
    freq, tick, status, out = state.freq_scaled, state.tick_us, state.status, []
    for call in calls:
        modes, flags = call["modes"], status & timex.FLAGS
        before = timex.freq_ppb(freq, tick)
        kind, asked = None, None
        if modes == timex.SINGLESHOT:
            kind, asked = "slew", call["offset"] * 1000
        elif modes & timex.SETOFFSET:
            assert modes & timex.NANO
            kind, asked = "step", call["s"] * 10**9 + call["part"]
            status |= timex.STA_UNSYNC
        else:
            status = call["status"] if modes & timex.STATUS else status
            freq = call["freq"] if modes & timex.FREQUENCY else freq
            tick = call["tick"] if modes & timex.TICK else tick
            if modes & timex.OFFSET:
                kind, asked = "slew", call["offset"] * 1000
            elif modes & (timex.FREQUENCY | timex.TICK):
                kind = "slew" if max(abs(before), abs(timex.freq_ppb(freq, tick))) > 500_000 else "frequency"
            elif status & timex.FLAGS != flags:
                kind = "unsync"
        if kind:
            out.append((kind, asked, (before, timex.freq_ppb(freq, tick))))
    return out
