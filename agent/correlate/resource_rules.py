"""Rows about a process's memory, descriptors and file systems around an episode."""

from __future__ import annotations

import numpy as np

from agent.common.disk_full import full_below
from agent.correlate.episode import Episode
from agent.correlate.rows import start_ticks
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View
from agent.tables import TABLES

CPU, MEMORY, FD, DISK, OOM, IO, IOPS, PIDS = (
    TABLES["resource"].code("kind", name) for name in ("cpu", "memory", "fd", "disk", "oom", "io", "iops", "pids")
)
READS = {
    "resource": (
        "kind",
        "object",
        "interval_ns",
        "used",
        "limit",
        "events",
        "faults",
        "waited_ns",
        "device",
        "direction",
    )
}
#: A killed process is reported after its end, and may have been slow for some seconds before.
_AFTER_NS, _BEFORE_NS = 3 * SECOND, 11 * SECOND


def full(rows: np.ndarray) -> np.ndarray:
    """Which of them report that nothing is left."""
    left = rows["limit"] - rows["used"]
    none = np.where(rows["kind"] == DISK, left <= full_below(rows["limit"]), left <= 0)
    failed = (rows["kind"] == PIDS) & (rows["events"] > 0)
    return np.asarray(failed | (none & (rows["limit"] >= 0) & (rows["used"] >= 0) & np.isin(rows["kind"], (FD, DISK))))


def of_process(episode: Episode, view: View, kind: int) -> np.ndarray:
    """Rows of that kind and of the episode's process: of its time, and a little later."""
    if episode.pid is None:
        return view.rings["resource"].between(0, -1)
    rows = view.rings["resource"].between(episode.start_ns - SECOND, episode.end_ns + _AFTER_NS)
    mine = (rows["kind"] == kind) & (rows["pid"] == episode.pid) & (start_ticks(rows) == episode.start_tick)
    return np.asarray(rows[mine])


def was_free(row: np.void, episode: Episode, view: View) -> bool:
    """Whether some was left in the two minutes before. A resource that has always been used up explains nothing new."""
    if row["kind"] == PIDS:
        return True  # such a row is made just when a process could not be started
    rows = view.rings["resource"].between(episode.start_ns - 120 * SECOND, int(row["t_ns"]))
    same = (rows["kind"] == row["kind"]) & (rows["object"] == row["object"])
    mine = (rows["pid"] == row["pid"]) | (row["kind"] == DISK)
    return bool((~full(rows))[same & mine].any())


def usual(episode: Episode, view: View) -> np.ndarray:
    """Rows of that process in the half minute before."""
    rows = view.rings["resource"].between(episode.start_ns - 3 * _BEFORE_NS, episode.start_ns - SECOND)
    return np.asarray(rows[rows["pid"] == (episode.pid or -1)])
