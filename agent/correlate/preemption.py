"""A process's waits for a CPU from the table that includes preempted threads, and what ran instead."""

from __future__ import annotations

import numpy as np

from agent.correlate.episode import Episode
from agent.correlate.rows import LastRows
from agent.correlate.thresholds import SECOND

_REACH_NS = 30 * SECOND  # sums of an interval come at its end


def preempted(ring: LastRows, pid: int, episode: Episode) -> np.ndarray:
    """Rows of ``cpu_wait`` of that process with an interval that meets the episode."""
    rows = ring.between(episode.start_ns, episode.end_ns + _REACH_NS)
    begun = rows["t_ns"] - np.maximum(rows["interval_ns"], SECOND)
    return np.asarray(rows[(rows["pid"] == pid) & (begun < episode.end_ns)])


def preempted_ns(ring: LastRows, pid: int, episode: Episode) -> float:
    """The waiting time beyond the usual one of the minute before."""
    rows = preempted(ring, pid, episode)
    before = ring.between(episode.start_ns - 60 * SECOND, episode.start_ns)
    usual = float(before["wait_ns"][before["pid"] == pid].sum()) / 60 * len(np.unique(rows["t_ns"]))
    return max(0.0, float(rows["wait_ns"].sum()) - usual)
