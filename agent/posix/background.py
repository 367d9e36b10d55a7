"""A place behind everybody else: what the agent does may wait, what it observes may not."""

from __future__ import annotations

import contextlib
import ctypes as ct
import os
import struct

from agent.arch import host

_SYS_SCHED_SETATTR = host.number("sched_setattr")
#: The longest and the shortest slice of processor time that the kernel takes.
_LONG_NS, _SHORT_NS = 100_000_000, 100_000


def give_way() -> None:
    """Has this process, and those it starts, neither interrupt another program by waking up (SCHED_BATCH) nor keep one
    that wakes up waiting.

    The latter from Linux 6.12 on: who asked for a longer slice of processor time has a later deadline, and makes way
    for a shorter one. The share of the processor stays the same. struct sched_attr: include/uapi/linux/sched/types.h;
    slices of one's own: 857b158dc5e8. Older kernels ignore them.
    """
    _schedule(os.SCHED_BATCH, _LONG_NS)


def hurry() -> bool:
    """Has a process that gives way run as soon as it wakes up, until it gives way again: for some ms of work that
    cannot wait. False where it does not give way.
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
