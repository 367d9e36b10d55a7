"""Lowers this process's scheduling rank: the agent's work may wait, the observed programs must not."""

from __future__ import annotations

import contextlib
import ctypes as ct
import os
import struct

from agent.arch import host

_SYS_SCHED_SETATTR = host.number("sched_setattr")
#: The longest and shortest CPU time slice that the kernel accepts.
_LONG_NS, _SHORT_NS = 100_000_000, 100_000


def give_way() -> None:
    """Makes this process and its children preempt no other program on wake-up (SCHED_BATCH), and yield soon to a
    program that wakes up.

    The latter needs Linux 6.12: a task with a longer time slice has a later deadline, and yields to one with a shorter
    slice. The share of the CPU stays the same. struct sched_attr: include/uapi/linux/sched/types.h; custom slices:
    857b158dc5e8. Older kernels ignore them.
    """
    _schedule(os.SCHED_BATCH, _LONG_NS)


def hurry() -> bool:
    """Makes such a process run as soon as it wakes up, until the next ``give_way``: for a few ms of urgent work. False
    if ``give_way`` was not called.
    """
    giving_way = os.sched_getscheduler(0) == os.SCHED_BATCH
    if giving_way:
        _schedule(os.SCHED_OTHER, _SHORT_NS)
    return giving_way


def _schedule(policy: int, slice_ns: int) -> None:
    attributes = struct.pack("<IIQiIQQQ", 48, policy, 0, os.getpriority(os.PRIO_PROCESS, 0), 0, slice_ns, 0, 0)
    with contextlib.suppress(OSError):
        if ct.CDLL(None).syscall(_SYS_SCHED_SETATTR, 0, ct.create_string_buffer(attributes), 0):
            os.sched_setscheduler(0, policy, os.sched_param(0))
