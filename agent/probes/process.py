"""Processes that are stopped, go on, and end, and who made them; see bpf/process.bpf.c. Those that are stopped, or
frozen, already when the agent begins have rows, too, without a signal.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from agent.batch import Batch
from agent.columns import NULL_I64
from agent.common.process_stat import read, stat
from agent.kernel.probe import Parts, Probe, Program, Ring
from agent.kernel.wire_structs import decode
from agent.limiters.intake import process_identity
from agent.tables import TABLES

if TYPE_CHECKING:
    from agent.contracts import Source
    from agent.kernel.loaded_families import Family

TABLE = TABLES["process_event"]


class StoppedBefore:
    """A source of one batch: the processes that are stopped when it is first drained (state T of proc(5)), or in a
    cgroup of version 2 that is frozen (cgroup.events).
    """

    name = "process.stopped"

    def __init__(self) -> None:
        self._done = False

    def drain(self, now_ns: int) -> Iterable[Batch]:
        stops = [] if self._done else [*_stopped(), *_frozen()]
        self._done = True
        if not stops:
            return
        rows = TABLE.empty(len(stops))
        rows["t_ns"] = now_ns
        for i, (kind, pid, parent, cgroup) in enumerate(stops):
            its = process_identity(pid)
            rows["kind"][i], rows["cgroup_id"][i] = TABLE.code("kind", kind), cgroup
            rows["pid"][i], rows["tid"][i], rows["parent_pid"][i] = pid, pid, parent
            rows["proc_start_ns"][i], rows["comm"][i] = its.start_ns, its.comm
        yield Batch(TABLE.name, rows[rows["proc_start_ns"] != NULL_I64])

    def close(self) -> None: ...


def _stopped() -> Iterator[tuple[str, int, int, int]]:
    """(kind, pid, parent, cgroup)"""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        its = stat(pid)
        if its is not None and its.state == "T":
            yield "stopped", pid, its.parent, NULL_I64


def _frozen() -> Iterator[tuple[str, int, int, int]]:
    """As ``_stopped``."""
    mounts = (line.split(" ") for line in read("/proc/self/mounts", 1 << 16).split("\n"))
    root = next((point for _, point, kind, *_ in (line for line in mounts if len(line) > 2) if kind == "cgroup2"), "")
    for folder, _, _ in os.walk(root) if root else ():
        if "frozen 1" in read(f"{folder}/cgroup.events").split("\n"):
            pids = map(int, read(f"{folder}/cgroup.procs", 1 << 16).split())
            with contextlib.suppress(OSError):  # it was removed
                cgroup = os.stat(folder).st_ino
                yield from (("frozen", pid, its.parent, cgroup) for pid in pids if (its := stat(pid)) is not None)


def setup(family: Family, kernel: Any, helper: Any, targets: Any, parts: Parts) -> Iterable[Source]:
    return (StoppedBefore(),)


PROBE = Probe(
    name="process",
    programs=(
        Program("process_on_signal", target="signal_generate", loses="who is stopped, and who ended whom"),
        Program("process_on_exit", target="sched_process_exit", loses="processes that end"),
        Program("process_on_freeze", target="cgroup_freeze", loses="containers that are paused"),
        Program("process_on_unfreeze", target="cgroup_unfreeze", loses="containers that go on"),
    ),
    rings=(Ring("process_events", "process_event", partial(decode, table="process_event")),),
    counts=("process_shares",),
    setup=setup,
)
