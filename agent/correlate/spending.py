"""How the process of an episode spent its time, compared with before: the calls in which it was for far longer. Pure.

The sums of all threads a second are known for consumers of queues only (``View.calls``). What a process always does, it
does not do for longer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.common.copies import together
from agent.correlate.calls import SO_FAR
from agent.correlate.episode import Episode
from agent.correlate.rows import groups
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View
from agent.correlate.words import text

READS = {
    "syscall_latency": ("syscall", "basis", "interval_ns", "sum_ns", "max_ns"),
    "slow_syscall": ("syscall", "basis", "duration_ns"),
}
_BEFORE_NS, _KNOWN_NS, _AFTER_NS = 60 * SECOND, 10 * SECOND, SECOND


@dataclass(frozen=True)
class Spending:
    """Calls of one kind. share, usual: of the time, now and before (several threads: more than 1)."""

    call: str
    share: float
    usual: float
    longest_ns: float

    @property
    def more(self) -> float:
        return min(1.0, self.share - self.usual)


def spending(episode: Episode, view: View) -> list[Spending]:
    """What it did for longer than before, most of the time first; empty if it is not known for long enough."""
    rows = view.own(view.calls.between(episode.start_ns - _BEFORE_NS, episode.end_ns + _AFTER_NS), episode)
    known_ns = episode.start_ns - int((rows["t_ns"] - rows["interval_ns"]).min(initial=episode.start_ns))
    rows = together([rows, _so_far(rows, episode, view)])
    now = rows["t_ns"] - rows["interval_ns"] // 2 > episode.start_ns
    if known_ns < _KNOWN_NS or not now.any():
        return []
    lasted_ns = max(float(SECOND), float(rows["t_ns"][now].max() - episode.start_ns))
    first, group = groups([rows["syscall"]])
    found = []
    for n, row in enumerate(rows[first]):
        its, before = rows[now & (group == n)], rows[~now & (group == n)]
        usual = float(before["sum_ns"].sum()) / min(known_ns, _BEFORE_NS)
        one = Spending(
            text(row["syscall"]),
            float(its["sum_ns"].sum()) / lasted_ns,
            usual,
            float(its["max_ns"].max(initial=0)),
        )
        if one.more > 0:
            found.append(one)
    return sorted(found, key=lambda one: (-one.more, one.call))


def _so_far(sums: np.ndarray, episode: Episode, view: View) -> np.ndarray:
    """Calls that go on, in the form of sums, in which they are not until they end: their time before the episode, and
    that since.
    """
    calls = view.own(view.rings["slow_syscall"].between(episode.start_ns, episode.end_ns + _AFTER_NS), episode)
    calls = calls[calls["basis"] == SO_FAR]
    out = np.zeros((2, len(calls)), sums.dtype)
    for name in ("pid", "proc_start_ns", "syscall"):
        out[name] = calls[name]
    out["t_ns"] = np.full(len(calls), episode.start_ns), calls["t_ns"]
    before_ns = (episode.start_ns - (calls["t_ns"] - calls["duration_ns"])).clip(0)
    out["sum_ns"] = before_ns.clip(0, _BEFORE_NS), calls["duration_ns"] - before_ns
    out["max_ns"] = calls["duration_ns"]
    return out.reshape(-1)
