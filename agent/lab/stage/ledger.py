"""What a run has made that the kernel does not take away by itself, written down before it is made.

One file in the run's directory, a line an entry. ``undo`` takes everything away again, the latest first; each way of
undoing may be done twice and of what was never made. So there is one way to clean up: the janitor goes it at the end of
every run, of those too that were killed, and the next start goes it for runs whose janitor was killed as well. Who
holds the file's lock is at work on the run, or on its removal.
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

BASE, PREFIX = Path("/var/tmp"), "tickscope-lab-"  # not /tmp: where that is memory, syncing a file is nothing
NAME = "ledger"
ENDED_S = 20.0


class Ledger:
    """The entries of one run, whose directory is ``directory``; holds the lock while it lives."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._file = (directory / NAME).open("a")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def add(self, what: str, path: Path | str) -> None:
        """Before it is made. what: one of ``UNDO``."""
        assert what in UNDO
        self._file.write(json.dumps({"what": what, "path": str(path)}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Lets go of the lock; may be called twice."""
        if self._file.closed:
            return
        fcntl.flock(
            self._file, fcntl.LOCK_UN
        )  # not by closing alone: a child between fork and exec holds the description too
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
    """Takes away all that a dead run left; waits for whoever does so already. Returns what could not be undone, in
    words.
    """
    try:
        file = (directory / NAME).open()
    except FileNotFoundError:
        return []
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        entries = [json.loads(line) for line in file if line.endswith("\n")]
    problem = []
    # What is frozen is thawed first: nothing that waits for a frozen file system can be killed.
    for entry in [e for e in entries if e["what"] == "disk"]:
        with contextlib.suppress(OSError):
            disk.thaw(Path(entry["path"]))
    for entry in reversed(entries):
        failed = _undone(entry)
        if failed:
            problem.append(f"{entry['what']} {entry['path']}: {failed}")
    return problem


def _undone(entry: dict[str, str]) -> str:
    """Empty where it is gone; else why it is not, after some seconds of trying: what was killed may need a moment to
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
    """Directories of runs that nobody works on; ours only: the base directory is everybody's."""
    for path in BASE.glob(f"{PREFIX}*"):
        if path.is_symlink() or path.lstat().st_uid != os.geteuid():
            continue
        try:
            with (path / NAME).open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            if time.time() - path.lstat().st_mtime > ENDED_S:  # else it may be just being made
                shutil.rmtree(path, ignore_errors=True)
            continue
        except BlockingIOError:
            continue
        yield path


def sweep() -> list[str]:
    """Removes what dead runs left. Returns what could not be undone."""
    return [problem for path in left_behind() for problem in undo(path)]
