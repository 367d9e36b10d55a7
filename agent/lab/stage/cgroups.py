"""The run's cgroups: one per hierarchy, for all its processes, with children that get limits.

Works with the one v2 tree, with v1 alone and with both (/proc/mounts shows where a controller is).
"""

from __future__ import annotations

import os
import signal
import time
from functools import cache
from pathlib import Path

#: v1 controllers that kinds set limits with.
CONTROLLERS = ("cpu", "memory", "blkio")


@cache
def _mounts() -> tuple[Path | None, dict[str, Path]]:
    """The v2 tree, and each v1 controller's."""
    two, one = None, {}
    for line in Path("/proc/mounts").read_text(errors="surrogateescape").splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2":
            two = two or Path(where)
        elif kind == "cgroup":
            one.update(dict.fromkeys(set(options.split(",")) & set(CONTROLLERS), Path(where)))
    return two, one


def roots() -> list[Path]:
    """The root of each hierarchy of this host."""
    two, one = _mounts()
    return list(dict.fromkeys([*([two] if two else []), *one.values()]))


class Cgroups:
    """The run's groups in each hierarchy. Write ``made`` into the ledger before calling ``make``."""

    def __init__(self, name: str) -> None:
        self.made = [root / name for root in roots()]

    def make(self, *children: str) -> None:
        for group in self.made:
            group.mkdir()
        two, _ = _mounts()
        if two is not None:
            available = (two / "cgroup.controllers").read_text().split()
            wanted = " ".join(f"+{c}" for c in ("cpu", "memory", "io") if c in available)
            if wanted:
                (two / "cgroup.subtree_control").write_text(wanted)
                (two / self.made[0].name / "cgroup.subtree_control").write_text(wanted)
        for group in self.made:
            for child in children:
                (group / child).mkdir()

    def enter(self, child: str) -> None:
        """Moves the calling process into a child."""
        for group in self.made:
            (group / child / "cgroup.procs").write_text("0")

    def controller(self, name: str, child: str) -> tuple[Path, bool] | None:
        """The directory of a controller for a child, and whether it is v2; None if this host does not have the
        controller.
        """
        two, one = _mounts()
        run = self.made[0].name
        if name in one:
            return one[name] / run / child, False
        modern = {"blkio": "io"}.get(name, name)
        if two is not None and modern in (two / "cgroup.controllers").read_text().split():
            return two / run / child, True
        return None


def pids(group: Path) -> list[int]:
    """Processes in a group and below."""
    return [int(pid) for file in group.rglob("cgroup.procs") for pid in file.read_text().split()]


def remove(group: Path) -> None:
    """Kills the processes in it, removes limits that slow their end, and removes it. Raises OSError while a process in
    it still runs.
    """
    if not group.is_dir():
        return
    for file in group.rglob("blkio.throttle.*_device"):
        for line in file.read_text().splitlines():
            file.write_text(f"{line.split()[0]} 0")
    if (frozen := group / "cgroup.freeze").exists():
        frozen.write_text("0")
    for pid in pids(group):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    time.sleep(0.01)
    for below in sorted((p for p in group.rglob("*") if p.is_dir()), key=lambda p: -len(p.parts)):
        below.rmdir()
    group.rmdir()
