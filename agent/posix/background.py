"""A place behind everybody else: what the agent does may wait, what it observes may not."""

from __future__ import annotations

import contextlib
import ctypes as ct
import os
import struct

_SYS_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}[os.uname().machine]
#: The most that the kernel takes.
_SLICE_NS = 100_000_000


def give_way() -> None:
    """Has this process, and those it starts, neither interrupt another program by waking up (SCHED_BATCH) nor keep one
    that wakes up waiting.

    The latter from Linux 6.12 on: who asked for a longer slice of processor time has a later deadline, and makes way
    for a shorter one. The share of the processor stays the same. struct sched_attr: include/uapi/linux/sched/types.h;
    slices of one's own: 857b158dc5e8. Older kernels ignore them.
    """
    attributes = struct.pack("<IIQiIQQQ", 48, os.SCHED_BATCH, 0, os.getpriority(os.PRIO_PROCESS, 0), 0, _SLICE_NS, 0, 0)
    with contextlib.suppress(OSError):
        if ct.CDLL(None).syscall(_SYS_SCHED_SETATTR, 0, ct.create_string_buffer(attributes), 0):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
