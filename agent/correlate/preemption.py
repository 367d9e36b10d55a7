"""A process's waits for a CPU from the table that includes preempted threads, and what ran instead."""

from __future__ import annotations

import numpy as np

from agent.correlate.episode import Episode
from agent.correlate.rows import LastRows
from agent.correlate.thresholds import SECOND

_REACH_NS = 30 * SECOND  # sums of an interval come at its end
_BEFORE_S, _LEAST_S = 60, 20  # the baseline
_NEAR_NS = 10 * SECOND


def preempted(ring: LastRows, pid: int, episode: Episode) -> np.ndarray:
    """Rows of ``cpu_wait`` of that process with an interval that meets the episode."""
    rows = ring.between(episode.start_ns, episode.end_ns + _REACH_NS)
    begun = rows["t_ns"] - np.maximum(rows["interval_ns"], SECOND)
    return np.asarray(rows[(rows["pid"] == pid) & (begun < episode.end_ns)])


def preempted_ns(ring: LastRows, pid: int, episode: Episode) -> float:
    """The waiting time beyond the usual one of the minute before."""
    rows = preempted(ring, pid, episode)
    before = ring.between(episode.start_ns - _BEFORE_S * SECOND, episode.start_ns)
    known_s = (episode.start_ns - int(before["t_ns"].min(initial=episode.start_ns))) / SECOND
    usual = float(before["wait_ns"][before["pid"] == pid].sum()) / max(known_s, _LEAST_S)
    return max(0.0, float(rows["wait_ns"].sum()) - usual * len(np.unique(rows["t_ns"])))


def near(episode: Episode) -> float:
    """The part of the waits of a whole episode that may be held against one of its requests: of an episode that lasts,
    most are outside of them.
    """
    return min(1.0, _NEAR_NS / max(1.0, float(episode.end_ns - episode.start_ns)))
