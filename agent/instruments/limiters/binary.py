"""The agent's state of a Go binary with limiters: its key in the kernel's map, and its row of ``probe_status``."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field

import numpy as np

from agent.batch import Batch, make
from agent.binaries.gofacts import Probed
from agent.instruments.limiters.limiter_sampling import Rates, Schedule
from agent.kernel.detach import Detaching
from agent.limiters.catalogue import seen
from agent.tables import TABLES


@dataclass(kw_only=True)
class Binary(Probed):
    """A Go binary that contains a library, or might.

    key: of ``limiter_binaries``. number: of its records. file: our descriptor of it while it is attached. measured: its
    hits can be counted. attaching: its probes are being attached, since asked_ns. since_ns: attached from then on.
    hits: of its probes at the last count, at sampled_ns. uid: of the process it was found in. sampled: probes are
    attached in windows only (``schedule``, ``rates``). phase: of a window, ``open``, ``settling`` (records may still
    arrive) or empty. window: its records. from_ns, until_ns: its bounds. due_ns: time of the next action. hits_before,
    hits_asked: hits before its probes were attached, and before it began.
    """

    path: str
    key: bytes
    number: int
    schedule: Schedule = field(default_factory=Schedule)
    rates: Rates = field(default_factory=Rates)
    file: int = -1
    links: list[int] = field(default_factory=list)
    closing: Detaching | None = None
    attaching: bool = False
    sampled: bool = False
    phase: str = ""
    measured: bool = True
    asked_ns: int = 0
    since_ns: int = 0
    uid: int = 0
    sampled_ns: int = 0
    from_ns: int = 0
    until_ns: int = 0
    due_ns: int = 0
    hits: int = 0
    hits_before: int = 0
    hits_asked: int = 0
    window: list[np.ndarray] = field(default_factory=list)


def name_of(one: Binary) -> str:
    """Its name in probe_status: the file's, or that of a declared limiter."""
    return (
        f"limiter:{one.library.removeprefix('own:') if one.library.startswith('own:') else one.path.rpartition('/')[2]}"
    )


def key_of(fd: int, shared: bool, library: int = 0) -> bytes:
    """``struct limiter_file``. library: its number. If no mount here has the file's device, it is not the file system's
    own device (btrfs, some overlays), or it is in another mount namespace. shared: an overlay's file, whose device
    differs in each container.
    """
    st = os.fstat(fd)
    major, minor = os.major(st.st_dev), os.minor(st.st_dev)
    with open("/proc/self/mountinfo", "rb") as mounts:  # lines end with \n only; users choose other characters in names
        known = not shared and any(line.split(b" ", 3)[2] == b"%d:%d" % (major, minor) for line in mounts)
    return key_of_file(st.st_ino, major << 20 | minor if known else 0, library)


def key_of_file(inode: int, device: int, library: int) -> bytes:
    return struct.pack("<QII", inode, device, library)


def any_file(library: int) -> bytes:
    """``struct limiter_file`` for a library's decisions in any program."""
    return struct.pack("<QII", 0, 0, library)


def status_of(one: Binary, now_ns: int) -> Batch:
    module = seen()[one.library].module if one.library else ""
    versions = ", ".join(
        filter(
            None,
            (one.go_version, f"{module} {one.library_version or '(' + one.unversioned + ')'}" if one.sites else ""),
        )
    )
    reason = one.path + (f" ({versions})" if versions else "") + (f": {one.reason}" if one.reason else "")
    return make(
        "probe_status",
        1,
        t_ns=now_ns,
        probe=name_of(one).encode()[:32],
        state=TABLES["probe_status"].code("state", one.state),
        reason=reason.encode()[:256],
        remedy=one.remedy.encode()[:160],
    )
