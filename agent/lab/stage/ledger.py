"""Records what a run makes that the kernel does not remove by itself, before it is made.

One file in the run's directory, one entry a line. ``undo`` removes everything, the latest first. Each step may be
repeated, and may be done for what was never made. So there is one mechanism of clean-up: the clean-up process uses it
at the end of every run, killed or not, and the next start uses it for runs whose clean-up process was killed. The
holder of the file's lock works on the run, or on its removal.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from agent.lab.stage import cgroups, disk

BASE, PREFIX = Path("/var/tmp"), "tickscope-lab-"  # not /tmp: that may be a tmpfs, where fsync does nothing
NAME = "ledger"
ENDED_S = 20.0


class Ledger:
    """The entries of one run, in its ``directory``; holds the lock while it exists."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._file = (directory / NAME).open("a")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def add(self, what: str, path: Path | str) -> None:
        """Call before it is made. what: one of ``UNDO``."""
        assert what in UNDO
        self._file.write(json.dumps({"what": what, "path": str(path)}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Releases the lock; may be called twice."""
        if self._file.closed:
            return
        fcntl.flock(
            self._file, fcntl.LOCK_UN
        )  # closing is not enough: a child between fork and exec holds the open file, too
        self._file.close()


def _remove_directory(path: Path) -> None:
    if path.parent != BASE or not path.name.startswith(PREFIX):
        raise ValueError(f"{path} is no directory of the laboratory")
    shutil.rmtree(path, ignore_errors=not path.exists())


UNDO: dict[str, Callable[[Path], None]] = {
    "cgroup": cgroups.remove,
    "disk": disk.detach,
    "directory": _remove_directory,
}


def undo(directory: Path) -> list[str]:
    """Removes all that a dead run left; waits if another process does so already. Returns messages about what could not
    be removed.
    """
    try:
        file = (directory / NAME).open()
    except FileNotFoundError:
        return []
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        entries = [json.loads(line) for line in file if line.endswith("\n")]
    problem = []
    # Frozen file systems are thawed first: a process that waits for one cannot be killed.
    for entry in [e for e in entries if e["what"] == "disk"]:
        with contextlib.suppress(OSError):
            disk.thaw(Path(entry["path"]))
    for entry in reversed(entries):
        failed = _undone(entry)
        if failed:
            problem.append(f"{entry['what']} {entry['path']}: {failed}")
    return problem


def _undone(entry: dict[str, str]) -> str:
    """Empty when it is removed; else the error after ENDED_S of attempts, since a killed process may need a moment to
    end.
    """
    until = time.monotonic() + ENDED_S
    while True:
        try:
            UNDO[entry["what"]](Path(entry["path"]))
        except (OSError, ValueError) as error:
            if time.monotonic() > until:
                return str(error)
            time.sleep(0.05)
        else:
            return ""


def left_behind() -> Iterator[Path]:
    """Directories of runs without an owner; only ours, since any user can write to the base directory."""
    for path in BASE.glob(f"{PREFIX}*"):
        if path.is_symlink() or path.lstat().st_uid != os.geteuid():
            continue
        try:
            with (path / NAME).open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            if time.time() - path.lstat().st_mtime > ENDED_S:  # else it may just be being made
                shutil.rmtree(path, ignore_errors=True)
            continue
        except BlockingIOError:
            continue
        yield path


def sweep() -> list[str]:
    """Removes what dead runs left. Returns messages about what could not be removed."""
    return [problem for path in left_behind() for problem in undo(path)]
