"""The clock watch: a process that sleeps on a cancel-on-set timer and reports every step within a millisecond.

Standard library only, so that it stays small. A process of its own, so that the agent cannot delay it. It runs in the
agent's third child (agent/clock/first.py), or is restarted by agent/clock/watch_restart.py.

A step cancels the timer (timerfd_create(2), TFD_TIMER_CANCEL_ON_SET). The timer is never read, so it stays cancelled
and every further step wakes a sleeper again. Several threads sleep in epoll_wait on it, and each step wakes one of them
(epoll's waiters are exclusive). So a step that follows during the handling of the first finds another thread asleep,
and the kernel program clock_woke sees its waker too. Only steps and leap seconds move REALTIME - BOOTTIME, so the
baseline needs no polling. (A suspend also wakes the sleepers, and moves REALTIME - MONOTONIC. It is reported to the
agent, but is no notice.)

A few times a second the watch writes its heartbeat (agent/clock/heartbeat.py) and checks whether it ran on time, which
detects a paused machine.
"""

from __future__ import annotations

import contextlib
import ctypes as ct
import mmap
import os
import select
import signal
import socket
import struct
import sys
import threading
import time

from agent.clock.heartbeat import Heartbeat
from agent.clock.subscribers import Subscribers
from agent.common.clocks import boot_ns

SLEEPERS = 4
#: To the agent, per notice: t_ns, real_mono_before_ns, real_mono_after_ns, err_ns, actor's pid (-1 unknown), number of
#: disconnected subscribers.
MESSAGE = struct.Struct("<qqqqqq")
#: To the agent: when it wanted to run, and when it ran, both CLOCK_BOOTTIME ns.
LATE = struct.Struct("<qq")
LATE_NS = 200_000_000
_CHECK_NS = 250_000_000
_STEP = struct.Struct("<QQqII16s")  # struct clock_step in bpf/clock.bpf.c
_SLOTS = 64
_UNKNOWN = -1
_NOISE_NS = 300
_SLEPT_NS = 1_000_000
#: Time for the kernel program to name who stepped the clock, since that thread may have lost the CPU.
_WAITS_S = (50e-6, 50e-6, 100e-6, 200e-6, 400e-6)
_ABSTIME_CANCEL_ON_SET = 3
_FAR_S = 1 << 33
#: A thread that reads subscribers' lines must not delay a step.
_SWITCH_S = 1e-4
_libc = ct.CDLL(None, use_errno=True)


_NICE = -20


def set_priority() -> None:
    """Makes this process and its threads real-time (``Sleeper.run`` keeps that only for threads that report steps).
    They run for microseconds per step. A nice value would count only within one session (sched(7), autogroup). The
    agent's ``state`` shows whether it worked.
    """
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def cancel_on_set_timer() -> int:
    """A timer on CLOCK_REALTIME, centuries ahead, which any step cancels. Raises OSError."""
    fd = int(_libc.timerfd_create(time.CLOCK_REALTIME, os.O_NONBLOCK | os.O_CLOEXEC))
    when = struct.pack("<4q", 0, 0, _FAR_S, 0)
    if fd < 0 or _libc.timerfd_settime(fd, _ABSTIME_CANCEL_ON_SET, when, None) < 0:
        raise OSError(ct.get_errno(), f"cancel-on-set timer: {os.strerror(ct.get_errno())}")
    return fd


def read_offset() -> tuple[int, int, int]:
    """(t_ns BOOTTIME, REALTIME - BOOTTIME, error bound), the best of five. t_ns is after all five readings, so every
    earlier step is included.
    """
    now, best, offset = time.clock_gettime_ns, 1 << 62, 0
    for _ in range(5):
        before, real, after = now(time.CLOCK_BOOTTIME), now(time.CLOCK_REALTIME), now(time.CLOCK_BOOTTIME)
        if after - before < best:
            best = after - before
            offset = real - before - best // 2
    return after, offset, best // 2 + 1


def _tai_real_ns() -> int:
    """TAI - REALTIME, always whole seconds."""
    gap = time.clock_gettime_ns(time.CLOCK_TAI) - time.clock_gettime_ns(time.CLOCK_REALTIME)
    return round(gap / 1e9) * 1_000_000_000


def _boot_mono_ns() -> int:
    return min(
        (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC) for _ in range(3)),
        key=abs,
    )


class Steps:
    """The kernel program's record of the last steps (map clock_last), mapped read-only. Raises OSError if it cannot be
    mapped.
    """

    def __init__(self, fd: int) -> None:
        size = -(-_SLOTS * _STEP.size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        self._seq = max(s[0] for s in self._all())

    def _all(self) -> list[tuple[int, int, int, int, int, bytes]]:
        return list(_STEP.iter_unpack(self._map[: _SLOTS * _STEP.size]))

    def new(self) -> list[tuple[int, int, int, int, int, bytes]]:
        """Steps since the last call, oldest first: (seq, t_ns, tai_boot_ns, err_ns, pid, comm)."""
        fresh = sorted(s for s in self._all() if s[0] > self._seq)
        if fresh:
            self._seq = fresh[-1][0]
        return fresh


class Sleeper:
    """The sockets of ``run_watch``, and the kernel program's steps if available. Raises OSError if the timer cannot be
    created.
    """

    def __init__(
        self, agent: socket.socket, subscribers: Subscribers, heartbeat: Heartbeat, steps: Steps | None
    ) -> None:
        self._agent, self._subscribers, self._heartbeat, self._steps = agent, subscribers, heartbeat, steps
        self._lock = threading.Lock()
        self._timer = cancel_on_set_timer()
        self._epoll = select.epoll()
        self._epoll.register(self._timer, select.EPOLLIN | select.EPOLLET)
        _, self._offset, self._err = read_offset()
        self._tai, self._slept = _tai_real_ns(), _boot_mono_ns()

    def run(self) -> None:
        """Runs until the agent's end closes."""
        threading.stack_size(64 * 1024)
        for _ in range(SLEEPERS):
            threading.Thread(target=self._sleep, daemon=True).start()
        # Only these threads keep the real-time priority: what others write to the notice socket must not run at it.
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        threading.Thread(target=self._check_rate, daemon=True).start()
        self._subscribers.serve(self._agent.fileno())

    def _sleep(self) -> None:
        while True:
            self._epoll.poll()
            with self._lock:
                self._stepped()

    def _check_rate(self) -> None:
        while True:
            self._heartbeat.beat()
            wanted = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + _CHECK_NS
            time.sleep(_CHECK_NS / 1e9)
            late = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - wanted
            if late > LATE_NS:
                now = boot_ns()
                self._send(LATE.pack(now - late, now))

    def _stepped(self) -> None:
        """Reports each step that the kernel program saw, then the rest, whose actor is unknown."""
        pid, comm = _UNKNOWN, b""
        tai = _tai_real_ns()
        for wait_s in (*_WAITS_S, 0.0):
            for _, step_t, tai_boot, step_err, pid, comm in self._steps.new() if self._steps else ():
                if tai_boot != _UNKNOWN:
                    self._send_notice("step", step_t, tai_boot - tai, step_err, pid, comm)
                    pid, comm = _UNKNOWN, b""
            t_ns, offset, err = read_offset()  # read here: it must not be older than a step that was just reported
            if abs(offset - self._offset) <= _NOISE_NS or pid != _UNKNOWN:
                break
            if not self._steps:
                break
            time.sleep(wait_s)  # read between a step and its waker: the kernel program's record follows
        slept = _boot_mono_ns()
        if abs(slept - self._slept) > _SLEPT_NS:
            self._slept = slept
            self._send(self._message(t_ns, offset, offset, err, _UNKNOWN))
        # At a leap second the kernel moves TAI - REALTIME by the opposite amount. No call does that.
        leap = tai != self._tai and abs(offset - self._offset + tai - self._tai) <= _NOISE_NS + err + self._err
        self._tai = tai
        self._send_notice("leap" if leap else "step", t_ns, offset, err, pid, comm)

    def _send_notice(self, kind: str, t_ns: int, real_boot: int, err: int, pid: int, comm: bytes) -> None:
        """Nothing for a call that moved the clock by less than can be measured, as time daemons make at their start."""
        if abs(real_boot - self._offset) <= max(_NOISE_NS, err + self._err):
            return
        before, offset, before_err = self._offset + self._slept, real_boot + self._slept, self._err
        message = self._message(t_ns, self._offset, real_boot, err + before_err, pid)
        self._offset, self._err = real_boot, err
        actor = {"pid": pid, "comm": comm.rstrip(b"\0").decode(errors="replace")} if pid > 0 else None
        notice = {
            "v": 1,
            "kind": kind,
            "size_ns": offset - before,
            "err_ns": err + before_err,
            "t_ns": t_ns,
            "real_mono_before_ns": before,
            "real_mono_after_ns": offset,
            "actor": actor,
        }
        self._subscribers.send_notice(notice, t_ns)
        self._send(message)

    def _message(self, t_ns: int, before: int, after: int, err: int, pid: int) -> bytes:
        """before, after: REALTIME - BOOTTIME."""
        dropped = self._subscribers.dropped
        return MESSAGE.pack(t_ns, before + self._slept, after + self._slept, err, pid if pid > 0 else _UNKNOWN, dropped)

    def _send(self, message: bytes) -> None:
        with contextlib.suppress(
            BlockingIOError
        ):  # the agent compares offsets itself; this only wakes it and dates the step
            self._agent.send(message)


def run_watch(
    agent: socket.socket,
    notices: socket.socket,
    report: socket.socket,
    heartbeat: int,
    steps: int = -1,
    counts: dict[str, int] | None = None,
) -> None:
    """Watches until the agent's end closes. Ignores SIGINT, which is for the agent.

    agent, report: SOCK_SEQPACKET. notices: listening. heartbeat: the heartbeat page. steps: the map clock_last, or -1.
    counts: those of the previous watch (``Subscribers``). Raises OSError.
    """
    sys.setswitchinterval(_SWITCH_S)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    agent.setblocking(False)
    Sleeper(
        agent, Subscribers(notices, report, counts), Heartbeat(heartbeat), Steps(steps) if steps >= 0 else None
    ).run()
