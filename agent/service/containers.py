"""Where the processes of rows and findings run: their container and systemd unit."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable

import numpy as np

from agent.batch import Batch, make
from agent.columns import NULL_I64
from agent.common import process_cgroup
from agent.common.fairness import UpperBound
from agent.common.places import NOWHERE, ProcessPlace
from agent.common.recent import Recent
from agent.common.runtimes import RUNTIME_FILES
from agent.service.place import Cgroup, cgroups_of, container_of, names_of, unit_of
from agent.tables import TABLES

#: Entries of each cache.
LIMIT = 4096
#: After a look-up that failed because the helper was busy, and for any other reason.
_REST_S, _LONG_REST_S = 0.05, 60.0
_BUSY = (errno.EAGAIN, errno.ETIMEDOUT)
#: Bytes of a runtime's file: a container has up to some hundred KB of environment.
MOST_BYTES = 1 << 19
#: How often a container that has rows is reported, so that its row is not removed before they are.
AGAIN_NS = 600 * 10**9
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "rows",
        "bytes of a container's file of its runtime",
        MOST_BYTES,
        "its pod, name and image are unknown",
        "-",
        "bytes",
    ),
)
_TABLE = TABLES["container"]
_NAMES = ("unit", "container_id", "container_name", "image", "pod", "namespace")


class Containers:
    """Fills ``container_id`` of rows and the places in findings, and is a source of ``container``.

    A place is known by the id of the row's cgroup, else from /proc/PID/cgroup (world-readable), which also knows
    version 1 of cgroups. look_up: the path of the cgroup with an id (version 2), OSError where there is none.
    open_file: a descriptor of a container's file of ``RUNTIME_FILES[number]``, OSError where there is none. Both are
    set before the first row. node: the name of the Kubernetes node. A cgroup is looked up once: at the start of the
    first program in it, so that its later and shorter processes are known by it, also once it is gone.
    """

    name = "containers"

    def __init__(
        self,
        look_up: Callable[[int], str] | None = None,
        open_file: Callable[[int, str], int] | None = None,
    ) -> None:
        self.look_up, self.open_file, self.node = look_up, open_file, ""
        self._rested_s = 0.0
        self._cgroups: Recent[int, ProcessPlace] = Recent(LIMIT)
        self._processes: Recent[tuple[int, int], ProcessPlace] = Recent(LIMIT)
        self._latest: Recent[int, ProcessPlace] = Recent(LIMIT)  # by pid
        self._known: Recent[bytes, ProcessPlace | None] = Recent(
            LIMIT
        )  # by container id, from files; None: there is none
        self._reported: Recent[bytes, int] = Recent(LIMIT)  # by container id, CLOCK_BOOTTIME ns
        self._seen: dict[bytes, ProcessPlace] = {}  # with rows since the last drain
        #: (finding id, pid) -> place: it stays the same if the process ends and another one gets its pid
        self._placed: Recent[tuple[bytes, int], ProcessPlace] = Recent(LIMIT)
        self._version_1 = not os.path.exists("/sys/fs/cgroup/cgroup.controllers")

    def on_exec(self, started: np.ndarray) -> None:
        """Takes started programs (``agent.probes.exec.STARTED``), while they run."""
        columns = (started[name].tolist() for name in ("pid", "proc_start_ns", "cgroup_id"))
        for one in zip(*columns, strict=True):
            if self._place(*one) is NOWHERE:
                self._latest.pop(one[0], None)

    def fill(self, batch: Batch) -> None:
        """Sets the column in place, for rows that have a process and no container id yet."""
        declared = TABLES[batch.table].by_name
        if "container_id" not in declared or "pid" not in declared:
            return
        rows = batch.rows
        wanted = np.flatnonzero((rows["pid"] != NULL_I64) & (rows["container_id"] == b""))
        if not len(wanted):
            return
        who = list(zip(*(rows[name][wanted].tolist() for name in ("pid", "proc_start_ns", "cgroup_id")), strict=True))
        ids = {one: self._place(*one).container_id for one in set(who)}
        if any(ids.values()):
            rows["container_id"][wanted] = [ids[one] for one in who]

    def place(self, batch: Batch) -> None:
        """Sets the places of the impacted process and of the culprit in rows of ``finding``."""
        if batch.table != "finding":
            return
        for at in range(len(batch.rows)):
            row = batch.rows[at : at + 1]
            for prefix, pid in (("", row["impacted_pid"]), ("culprit_", row["culprit_pid"])):
                found = self._of_finding(bytes(row["finding_id"][0]), int(pid[0]))
                for name in _NAMES:
                    row[f"{prefix}{name}"] = getattr(found, name)

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """Rows of containers that are new, or were last reported ``AGAIN_NS`` ago."""
        seen, self._seen = self._seen, {}
        new = [one for one in seen.values() if now_ns - self._reported.get(one.container_id, -AGAIN_NS) >= AGAIN_NS]
        if not new:
            return
        batch = make("container", len(new), t_ns=now_ns, node=self.node.encode()[: _TABLE.by_name["node"].width])
        for name in (*_NAMES, "pod_uid"):
            batch.rows[name] = [getattr(one, name) for one in new]
        batch.rows["runtime"] = [_TABLE.code("runtime", one.runtime.decode()) for one in new]
        for one in new:
            self._reported[one.container_id] = now_ns
        yield batch

    def close(self) -> None:
        """Nothing is kept open."""

    def _of_finding(self, finding_id: bytes, pid: int) -> ProcessPlace:
        if pid <= 0:
            return NOWHERE
        if (finding_id, pid) not in self._placed:
            found = self._latest.get(pid) or self._from_proc(pid) or NOWHERE
            if found is NOWHERE:
                return found
            self._placed[finding_id, pid] = found
        return self._placed[finding_id, pid]

    def known(self, pid: int, start_ns: int, cgroup: int) -> ProcessPlace:
        """The place of a process with rows that passed ``fill``; nowhere if it is unknown or not kept any more. May be
        called from any thread: it only reads, and asks nobody.
        """
        return self._either(self._cgroups.get(cgroup, NOWHERE), lambda: self._processes.get((pid, start_ns), NOWHERE))

    def _either(self, of_cgroup: ProcessPlace, of_process: Callable[[], ProcessPlace]) -> ProcessPlace:
        if of_cgroup.container_id or not (self._version_1 or of_cgroup is NOWHERE):
            return of_cgroup
        found = of_process()
        return of_cgroup if found is NOWHERE else found

    def _place(self, pid: int, start_ns: int, cgroup: int) -> ProcessPlace:
        found = self._either(self._of_cgroup(cgroup), lambda: self._of_process(pid, start_ns))
        if found is not NOWHERE:
            if self._latest.get(pid) is not found:
                self._latest[pid] = found
            if found.runtime:
                self._seen[found.container_id] = found
        return found

    def _of_cgroup(self, number: int) -> ProcessPlace:
        if number in self._cgroups:
            return self._cgroups[number]
        if self.look_up is None or number < 0 or time.monotonic() < self._rested_s:
            return NOWHERE
        try:
            found = self._found([Cgroup.at(os.fsencode(self.look_up(number)))])
        except OSError as error:
            if error.errno != errno.ESTALE:
                self._rested_s = time.monotonic() + (_REST_S if error.errno in _BUSY else _LONG_REST_S)
                return NOWHERE
            found = NOWHERE
        self._cgroups[number] = found
        return found

    def _of_process(self, pid: int, start_ns: int) -> ProcessPlace:
        key = (pid, start_ns)
        if key not in self._processes:
            if time.monotonic() < self._rested_s:
                return NOWHERE
            found = self._from_proc(pid)
            if found is None:
                return NOWHERE
            self._processes[key] = found
        return self._processes[key]

    def _from_proc(self, pid: int) -> ProcessPlace | None:
        """Of a process now; nowhere if it has ended, None while the helper is busy."""
        try:
            text = process_cgroup.read(pid)
        except OSError:
            return NOWHERE
        try:
            return self._found(cgroups_of(text))
        except OSError:
            self._rested_s = time.monotonic() + _REST_S
            return None

    def _found(self, cgroups: list[Cgroup]) -> ProcessPlace:
        """Raises OSError while the helper is busy."""
        unit = unit_of(cgroups)
        container_id, above = container_of(cgroups)
        if not container_id:
            return ProcessPlace(unit) if unit else NOWHERE
        if container_id not in self._known:
            self._known[container_id] = self._from_files(container_id.decode())
        known = self._known[container_id]
        if known is None:  # a user's own container, for example
            return ProcessPlace(unit, container_id)
        # A user may name a cgroup of theirs like any container. But only root can create one where the runtime does.
        return known._replace(unit=unit) if _of_root(above) else ProcessPlace(unit) if unit else NOWHERE

    def _from_files(self, container_id: str) -> ProcessPlace | None:
        """Raises OSError while the helper is busy."""
        there = None
        for number, file in enumerate(RUNTIME_FILES if self.open_file else ()):
            assert self.open_file is not None
            try:
                fd = self.open_file(number, container_id)
            except OSError as error:
                if error.errno in _BUSY:
                    raise
                continue
            with open(fd, "rb", buffering=0) as opened:
                content = opened.read(MOST_BYTES + 1)
            if found := names_of(file.kind, container_id, content) if len(content) <= MOST_BYTES else None:
                return found
            if "{}" in file.place:
                there = ProcessPlace(container_id=container_id.encode())
        return there


def _of_root(directory: bytes) -> bool:
    try:
        return os.stat(directory).st_uid == 0
    except OSError:
        return False
