"""Decodes waits for a processor, which the syscalls family sees; see bpf/syscalls_cpu.h."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from agent.batch import Batch
from agent.columns import NULL_I64
from agent.common.fairness import earlier
from agent.kernel.wire import OUTSIDE, decode

#: Of ``cpu_wait``: shorter sums are not told, and of others only so many an interval.
_CPU_FLOOR_NS, _CPU_PAIRS = 5_000_000, 64


def _named(batch: Batch, by: np.ndarray) -> Batch:
    """With who ran instead."""
    for name in ("pid", "proc_start_ns", "cgroup_id"):
        column = by[name]
        unknown = column >= (OUTSIDE if name == "pid" else np.iinfo(column.dtype).max)
        batch.rows[f"by_{name}"] = np.where(unknown, NULL_I64, column.astype(np.int64))
    batch.rows["by_comm"] = np.where(by["pid"] == 0, b"", by["comm"])
    return batch


def decode_cpu_events(records: np.ndarray) -> Batch:
    """syscalls_cpu_event records -> cpu_delay rows."""
    batch = decode(records[["t_ns", "proc"]], "cpu_delay")
    batch.rows["duration_ns"] = records["wait_ns"]
    return _named(batch, records["by"])


def decode_cpu_waits(keys: np.ndarray, values: np.ndarray, interval_ns: int, t_ns: int) -> Iterator[Batch]:
    """Aggregated elements -> cpu_wait rows: of each user in turn those that waited longest."""
    values = values[values["wait_ns"] >= _CPU_FLOOR_NS]
    values = values[np.argsort(values["wait_ns"], kind="stable")[::-1]]
    values = values[np.argsort(earlier(values["uid"]), kind="stable")[:_CPU_PAIRS]]
    if len(values):
        batch = decode(values[["count", "wait_ns", "max_ns", "proc"]], "cpu_wait")
        batch.rows["t_ns"], batch.rows["interval_ns"] = t_ns, interval_ns
        yield _named(batch, values["by"])
