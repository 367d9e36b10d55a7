"""How much CPU time a process itself used while requests waited, from its own counters. Shared by several causes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.correlate.cpu_starvation import READS as STARVED
from agent.correlate.cpu_starvation import starved
from agent.correlate.episode import Episode
from agent.correlate.rows import start_ticks
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View
from agent.correlate.waits import slow_spans

READS = {
    **STARVED,
    "cpu_use": ("interval_ns", "user_ns", "system_ns"),
    "slow_syscall": ("duration_ns", "waker_pid", "waker_tid", "waker_awake_ns", "waker_cpu_ns"),
}
_AFTER_NS = 3 * SECOND  # an interval's row comes at its end
_BEFORE_S, _LEAST_S = 60, 20  # the baseline
#: Share of the time from which a process ran instead of waiting; and how much that must exceed the usual share.
MUCH, MORE = 0.7, 0.3
_KERNEL = 0.6  # share of kernel time from which the kernel did the work: calls, faults, reclaim


@dataclass(frozen=True)
class Ran:
    """ran_ns: CPU time within needed_ns, all threads together; waited_ns: time waiting for a CPU meanwhile; usual: CPUs
    that it usually keeps busy, None if that is not known; start_tick: when the process started.
    """

    ran_ns: float
    waited_ns: float
    needed_ns: float
    usual: float | None
    in_kernel: bool
    start_tick: int | None

    @property
    def share(self) -> float:
        """The share of the time in which it wanted to run, including waits for a CPU."""
        return min(1.0, (self.ran_ns + self.waited_ns) / self.needed_ns)

    @property
    def busy(self) -> bool:
        """Whether it ran all the time. A process that is only delayed in its usual work does not."""
        return self.share >= MUCH and self.more

    @property
    def more(self) -> bool:
        """Whether it ran more than usual."""
        return self.ran_ns / self.needed_ns - (self.usual or 0.0) >= MORE


def ran(pid: int, episode: Episode, view: View) -> Ran | None:
    """For one process, while the episode's slow requests waited. None if nothing is known, or it hardly ran.

    Intervals are longer than the waits: for the remaining time the usual use of the process is subtracted.
    """
    rows = view.rings["cpu_use"].between(episode.start_ns - _BEFORE_S * SECOND, episode.end_ns + _AFTER_NS)
    rows = rows[rows["pid"] == pid]
    begun = rows["t_ns"] - rows["interval_ns"]
    spans = _together(*slow_spans(episode, view))
    met = np.zeros(len(rows), np.bool_)
    for from_ns, to_ns in spans:
        met |= (rows["t_ns"] > from_ns) & (begun < to_ns)
    now, needed_ns = rows[met], float(sum(to_ns - from_ns for from_ns, to_ns in spans))
    if not len(now) or needed_ns <= 0:
        return _before_it_woke(pid, spans, needed_ns, episode, view) if needed_ns > 0 else None
    before = rows[rows["t_ns"] <= episode.start_ns]
    before = before[start_ticks(before) == start_ticks(now[-1:])[0]]
    known_ns = episode.start_ns - int((before["t_ns"] - before["interval_ns"]).min(initial=episode.start_ns))
    usual = float(_both(before).sum()) / min(max(known_ns, _LEAST_S * SECOND), _BEFORE_S * SECOND)
    total = float(_both(now).sum()) - usual * max(0.0, float(now["interval_ns"].sum()) - needed_ns)
    if _both(now).sum() <= now["interval_ns"].sum():
        total = min(total, needed_ns)  # one thread may have used all of it, partly before and after
    in_kernel = float(now["system_ns"].sum()) >= _KERNEL * float(_both(now).sum())
    waited_ns = min(starved(pid, episode, view).waited_ns, needed_ns)
    return Ran(max(0.0, total), waited_ns, needed_ns, usual, in_kernel, int(start_ticks(now[-1:])[0]))


def _before_it_woke(
    pid: int, spans: list[tuple[int, int]], needed_ns: float, episode: Episode, view: View
) -> Ran | None:
    """The same for a process that nobody watched, by the CPU time of its threads before they ended waits of others."""
    rows = view.rings["slow_syscall"].between(spans[0][0], spans[-1][1] + SECOND)
    rows = rows[(rows["waker_pid"] == pid) & (rows["waker_awake_ns"] >= 0) & (rows["waker_cpu_ns"] >= 0)]
    ran_ns, begun = 0.0, rows["t_ns"] - rows["waker_awake_ns"]
    tids, thread = np.unique(rows["waker_tid"], return_inverse=True)
    for from_ns, to_ns in spans:
        met = (rows["t_ns"] > from_ns) & (begun < to_ns)
        outside = np.maximum(0, from_ns - begun[met]) + np.maximum(0, rows["t_ns"][met] - to_ns)
        cpu_ns, awake_ns = rows["waker_cpu_ns"][met], np.maximum(rows["waker_awake_ns"][met], 1)
        # it ran evenly during the episode; before that it may have run without a pause
        during = cpu_ns * (1 - np.minimum(outside / awake_ns, 1.0))
        its_ns = np.where(begun[met] >= episode.start_ns - SECOND, during, cpu_ns - outside)
        of_thread = np.zeros(len(tids))
        np.maximum.at(of_thread, thread[met], its_ns)
        ran_ns += float(of_thread.sum())
    if not ran_ns:
        return None
    waited_ns = min(starved(pid, episode, view).waited_ns, needed_ns)
    return Ran(min(ran_ns, needed_ns), waited_ns, needed_ns, None, False, view.started(pid, episode))


def own(episode: Episode, view: View) -> Ran | None:
    """For the episode's own process."""
    return view.once(_own, episode)


def _own(episode: Episode, view: View) -> Ran | None:
    return ran(episode.pid, episode, view) if episode.pid is not None and episode.pid > 0 else None


def _together(begins: np.ndarray, ends: np.ndarray) -> list[tuple[int, int]]:
    """Overlapping spans merged."""
    out: list[tuple[int, int]] = []
    for from_ns, to_ns in sorted(zip(begins.tolist(), ends.tolist(), strict=True)):
        if out and from_ns <= out[-1][1]:
            out[-1] = out[-1][0], max(out[-1][1], to_ns)
        else:
            out.append((from_ns, to_ns))
    return out


def _both(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows["user_ns"] + rows["system_ns"], np.float64)
