"""The container that each row's process runs in."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable

import numpy as np

from agent.batch import Batch
from agent.columns import NULL_I64
from agent.tables import TABLES

#: Of a cgroup's path, the last part that names a container; what it has made below itself is the container, too.
_CONTAINER = re.compile(rb".*/(?:[\w.-]+-)?([0-9a-f]{64})(?:\.scope)?(?=/|\s*$)", re.M)
#: Elements of each of the two caches, which are emptied when full.
LIMIT = 4096
#: After a look-up that failed because the helper was busy, and for any other reason.
_REST_S, _LONG_REST_S = 0.05, 60.0


class Containers:
    """Fills ``container_id``: by the id of the row's cgroup, else from /proc/PID/cgroup (world-readable), which also
    knows version 1 of cgroups.

    look_up: the path of the cgroup with an id (version 2), OSError where there is none; set before the first row. A
    cgroup is looked up once: at the start of the first program in it, so that its later and shorter processes are known
    by it, also once it is gone.
    """

    def __init__(self, look_up: Callable[[int], str] | None = None) -> None:
        self.look_up = look_up
        self._rested_s = 0.0
        self._cgroups: dict[int, bytes] = {}
        self._processes: dict[tuple[int, int], bytes] = {}
        self._version_1 = not os.path.exists("/sys/fs/cgroup/cgroup.controllers")

    def on_exec(self, started: np.ndarray) -> None:
        """Takes started programs (``agent.probes.exec.STARTED``), while they run."""
        columns = (started[name].tolist() for name in ("cgroup_id", "pid", "proc_start_ns"))
        for number, pid, start in zip(*columns, strict=True):
            if not self._of_cgroup(number) and self._version_1:
                self._of_process(pid, start)

    def fill(self, batch: Batch) -> None:
        """Sets the column in place, for rows that have a process and no container id yet."""
        if "container_id" not in TABLES[batch.table].by_name:
            return
        rows = batch.rows
        wanted = np.flatnonzero((rows["pid"] != NULL_I64) & (rows["container_id"] == b""))
        if not len(wanted):
            return
        who = list(zip(*(rows[name][wanted].tolist() for name in ("pid", "proc_start_ns", "cgroup_id")), strict=True))
        ids = {one: self._of_cgroup(one[2]) or self._of_process(*one[:2]) for one in set(who)}
        if any(ids.values()):
            rows["container_id"][wanted] = [ids[one] for one in who]

    def _of_cgroup(self, number: int) -> bytes:
        if number in self._cgroups:
            return self._cgroups[number]
        if self.look_up is None or number < 0 or time.monotonic() < self._rested_s:
            return b""
        try:
            found = container_of(os.fsencode(self.look_up(number)))
        except OSError as error:
            if error.errno != errno.ESTALE:
                self._rested_s = time.monotonic() + (
                    _REST_S if error.errno in (errno.EAGAIN, errno.ETIMEDOUT) else _LONG_REST_S
                )
                return b""
            found = b""
        if len(self._cgroups) >= LIMIT:
            self._cgroups.clear()
        self._cgroups[number] = found
        return found

    def _of_process(self, pid: int, start_ns: int) -> bytes:
        key = (pid, start_ns)
        if key not in self._processes:
            if len(self._processes) >= LIMIT:
                self._processes.clear()
            self._processes[key] = of_process(pid)
        return self._processes[key]


def container_of(path: bytes) -> bytes:
    """The id in a cgroup's path, or in the text of /proc/PID/cgroup; empty where it is no container's."""
    match = _CONTAINER.search(path)
    return match.group(1) if match else b""


def of_process(pid: int) -> bytes:
    """The container of a process now; empty if it has none, or has ended."""
    try:
        fd = os.open(f"/proc/{pid}/cgroup", os.O_RDONLY)
    except OSError:
        return b""
    try:
        return container_of(os.read(fd, 8192))
    except OSError:
        return b""
    finally:
        os.close(fd)
