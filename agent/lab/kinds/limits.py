"""Limits of processes: memory and descriptors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.lab.kind import Fault, Kind, Offender, Right, Size
from agent.lab.programs.limiter_memory import PAGE
from agent.lab.stage.stage import Stage

#: Standard input, output and error, and the log: fewer than any program has open.
LEAST_FILES = 4


def _memory(stage: Stage, name: str) -> Path:
    """The file that limits a program's memory."""
    found = stage.groups.controller("memory", name)
    assert found is not None
    return found[0] / ("memory.max" if found[1] else "memory.limit_in_bytes")


def _own_bytes(group: Path) -> int:
    """A cgroup's memory that cannot be reclaimed without swap. Memory from before a fork is charged to the parent."""
    values = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int(values.get("anon") or values["rss"])


@contextmanager
def pressed(stage: Stage, fault: Fault) -> Iterator[Offender]:
    """Lowers the memory limit: of the reclaimable memory the program keeps the fault's share. The rest is reclaimed and
    read again, all the time.
    """
    file = _memory(stage, fault.target)
    group = file.parent
    usage = int((group / ("memory.current" if file.name == "memory.max" else "memory.usage_in_bytes")).read_text())
    own = _own_bytes(group)
    stage.processes.expect_end(fault.target)  # the kernel may kill it in the end
    file.write_text(str((own + int(fault.size * max(0, usage - own)) + (2 << 20)) // PAGE * PAGE))
    try:
        yield Offender(fault.target, str(group.name))
    finally:
        file.write_text("max" if file.name == "memory.max" else "-1")
        stage.processes.revive(fault.target)


@contextmanager
def out_of_memory(stage: Stage, fault: Fault) -> Iterator[Offender]:
    """The program grows beyond its limit, and the kernel kills it; it starts again at the fault's end."""
    file = _memory(stage, fault.target)
    own = _own_bytes(file.parent)
    file.write_text(str((own + (24 << 20)) // PAGE * PAGE))
    stage.processes.expect_end(fault.target)
    stage.processes.set_settings(fault.target, grow=4)
    try:
        yield Offender(fault.target)
    finally:
        file.write_text("max" if file.name == "memory.max" else "-1")
        stage.processes.set_settings(fault.target, grow=0)
        stage.processes.revive(fault.target)


@contextmanager
def without_descriptors(stage: Stage, fault: Fault) -> Iterator[Offender]:
    """The program can open no more files than it has."""
    stage.processes.set_settings(fault.target, files=LEAST_FILES)
    try:
        yield Offender(fault.target)
    finally:
        stage.processes.set_settings(fault.target, files=0)


KINDS = (
    Kind(
        "memory_pressure",
        "a cgroup's limit makes a program's pages go and come all the time",
        Size("share_kept", 0.5, 0.05),
        ("api-tables",),
        (Right("memory", culprit=True), Right("memory")),
        pressed,
        (3.0, 6.0),
        ("memory",),
    ),
    Kind(
        "oom_killed",
        "a program outgrows its cgroup's limit, and is killed",
        Size("duration_s", 3.0, 8.0),
        ("api-tables",),
        (
            Right("resource_limit", "memory", culprit=True),
            Right("memory", "oom", culprit=True),
            Right("process_killed", culprit=True),
        ),
        out_of_memory,
        needs=("memory",),
    ),
    Kind(
        "descriptors_exhausted",
        "a program may open no more files",
        Size("duration_s", 0.8, 6.0),
        ("api-http", "api-tls", "web"),
        (Right("resource_limit", "fd", culprit=True), Right("resource_limit", "fd")),
        without_descriptors,
    ),
)
