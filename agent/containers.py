"""The container that each row's process runs in."""

from __future__ import annotations

import os
import re

import numpy as np

from agent.batch import Batch
from agent.columns import NULL_I64
from agent.tables import TABLES

_CONTAINER = re.compile(rb"([0-9a-f]{64})(?:\.scope)?/?\s*$", re.M)


class Containers:
    """Fills ``container_id`` from /proc/PID/cgroup: one look per process, not per row. Bounded; world-readable, so no privilege."""

    LIMIT = 4096

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], bytes] = {}

    def fill(self, batch: Batch) -> None:
        """Sets the column in place, for rows that have a process and no container id yet."""
        if "container_id" not in TABLES[batch.table].by_name:
            return
        rows = batch.rows
        wanted = np.flatnonzero((rows["pid"] != NULL_I64) & (rows["container_id"] == b""))
        if not len(wanted):
            return
        pid, start = rows["pid"][wanted], rows["proc_start_ns"][wanted]
        # Rows of one process often come together, and sorting pairs takes longer than all else that is done to a row.
        runs = np.flatnonzero(np.append(True, (pid[1:] != pid[:-1]) | (start[1:] != start[:-1])))
        unique, inverse = np.unique(np.stack([pid[runs], start[runs]], axis=1), axis=0, return_inverse=True)
        ids = np.array([self._of(int(p), int(s)) for p, s in unique], "S64")[inverse.ravel()]
        rows["container_id"][wanted] = np.repeat(ids, np.diff(np.append(runs, len(wanted))))

    def _of(self, pid: int, start: int) -> bytes:
        key = (pid, start)
        if key not in self._known:
            if len(self._known) >= self.LIMIT:
                self._known.clear()
            self._known[key] = self._read(pid)
        return self._known[key]

    @staticmethod
    def _read(pid: int) -> bytes:
        try:
            fd = os.open(f"/proc/{pid}/cgroup", os.O_RDONLY)
        except OSError:
            return b""  # the process has ended: unknown
        try:
            match = _CONTAINER.search(os.read(fd, 8192))
            return match.group(1) if match else b""
        except OSError:
            return b""
        finally:
            os.close(fd)
