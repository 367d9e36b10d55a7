"""The disk: slow to write or to read, frozen, full, or kept busy by another writer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from agent.lab.kind import Fault, Kind, Offender, Right, Size
from agent.lab.stage import disk
from agent.lab.stage.stage import DISK_BYTES_PER_S, GUESTS, Stage


@contextmanager
def frozen(stage: Stage, _fault: Fault) -> Iterator[Offender]:
    """Freezes the file system, as for a snapshot: writers wait."""
    pid = stage.processes.fork(lambda: disk.freeze(stage.disk), GUESTS, "node", "lab-freezer", root=True)
    os.waitpid(pid, 0)
    try:
        yield Offender("lab-freezer", str(stage.disk), (pid,))
    finally:
        os.waitpid(stage.processes.fork(lambda: disk.unfreeze(stage.disk), GUESTS, "node", "lab-freezer", root=True), 0)


@contextmanager
def slowed(stage: Stage, fault: Fault) -> Iterator[Offender]:
    stage.disk_speed(int(fault.size))
    try:
        yield Offender(object=stage.device)
    finally:
        stage.disk_speed(DISK_BYTES_PER_S)


@contextmanager
def read_slowly(stage: Stage, fault: Fault) -> Iterator[Offender]:
    stage.disk_speed(int(fault.size), reads=True)
    try:
        yield Offender(object=stage.device)
    finally:
        stage.disk_speed(0, reads=True)


@contextmanager
def filled(stage: Stage, fault: Fault) -> Iterator[Offender]:
    """Another program takes all free space."""
    place = stage.disk / "filler"

    def fill() -> None:
        size = 1 << 20
        with place.open("wb", buffering=0) as file:
            while True:
                try:
                    file.write(bytes(size))
                except OSError:  # it also takes what others free
                    size = max(4096, size >> 1)
                    time.sleep(0.002)

    pid = stage.processes.fork(fill, GUESTS, "node", "lab-filler", root=False)
    try:
        yield Offender("lab-filler", str(stage.disk), (pid,))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.waitpid(stage.processes.fork(place.unlink, GUESTS, "node", "lab-filler", root=True), 0)


@contextmanager
def contended(stage: Stage, fault: Fault) -> Iterator[Offender]:
    """Another program writes much, and syncs it."""
    stage.processes.set_settings(fault.target, bytes=int(fault.size), sync=True)
    try:
        yield Offender(fault.target, stage.device)
    finally:
        stage.processes.set_settings(fault.target, bytes=1 << 16, sync=False)


FROZEN = Kind(
    "disk_frozen",
    "a file system is frozen, as for a snapshot",
    Size("duration_s", 0.15, 4.0),
    ("disk",),
    (Right("syscall", "fsync"), Right("disk")),
    frozen,
)
SLOW = Kind(
    "disk_slow",
    "a disk writes slowly",
    Size("bytes_per_s", 4e4, 4e3),
    ("disk",),
    (Right("disk"), Right("syscall", "fsync")),
    slowed,
    (3.0, 6.0),
    ("blkio",),
    2.0,
)
SLOW_READS = Kind(
    "disk_slow_reads",
    "a disk reads slowly",
    Size("bytes_per_s", 1e5, 1e4),
    ("disk",),
    (Right("disk"), Right("syscall", "readv")),
    read_slowly,
    (3.0, 6.0),
    ("blkio",),
    2.0,
    touches={"disk": ("api-lookup",)},
)
FULL = Kind(
    "disk_full",
    "another program fills a disk",
    Size("duration_s", 1.0, 5.0),
    ("disk",),
    (Right("resource_limit", "disk_full"), Right("disk", culprit=True)),  # it writes as fast as the disk takes it
    filled,
    ends=("kafka",),  # it shuts down when it cannot write
)
BUSY = Kind(
    "disk_contended",
    "another program writes much to the same disk, and syncs",
    Size("bytes", 8e6, 4e7),
    ("writer",),
    (Right("disk", culprit=True), Right("syscall", "fsync")),
    contended,
    (3.0, 6.0),
    ("blkio",),
    settle_s=1.0,
    touches={"writer": ("api-journal", "api-tables")},
)
