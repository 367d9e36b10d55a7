"""How much of the time that something took a process itself ran: of the processor, by its own account, as far as
several causes go by it.
"""

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

READS = {**STARVED, "cpu_use": ("interval_ns", "user_ns", "system_ns")}
_AFTER_NS = 3 * SECOND  # an interval's row comes at its end
_BEFORE_S, _LEAST_S = 60, 20  # by which it is known what is usual
#: Of the time, from which it ran instead of waiting; and more than usual by so much.
MUCH, MORE = 0.7, 0.3
_KERNEL = 0.6  # of what it ran, from which the kernel worked for it: calls, faults, reclaim


@dataclass(frozen=True)
class Ran:
    """ran_ns: within needed_ns, all threads together; waited_ns: for a processor meanwhile; usual: processors that it
    keeps busy usually; start_tick: when the process started.
    """

    ran_ns: float
    waited_ns: float
    needed_ns: float
    usual: float
    in_kernel: bool
    start_tick: int

    @property
    def share(self) -> float:
        """Of the time, in which it wanted to run: who computes does so, though others run as well."""
        return min(1.0, (self.ran_ns + self.waited_ns) / self.needed_ns)

    @property
    def busy(self) -> bool:
        """Who is only kept from what it always does runs no more than usually."""
        return self.share >= MUCH and self.ran_ns / self.needed_ns - self.usual >= MORE


def ran(pid: int, episode: Episode, view: View) -> Ran | None:
    """Of one process, while the episode's slow requests waited. None where nothing is known, or it hardly ran.

    An interval is longer than what lies in it: what the process runs usually is taken off for the rest of it.
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
        return None
    before = rows[rows["t_ns"] <= episode.start_ns]
    before = before[start_ticks(before) == start_ticks(now[-1:])[0]]
    known_ns = episode.start_ns - int((before["t_ns"] - before["interval_ns"]).min(initial=episode.start_ns))
    usual = float(_both(before).sum()) / min(max(known_ns, _LEAST_S * SECOND), _BEFORE_S * SECOND)
    total = float(_both(now).sum()) - usual * max(0.0, float(now["interval_ns"].sum()) - needed_ns)
    if _both(now).sum() <= now["interval_ns"].sum():
        total = min(total, needed_ns)  # one thread may have done all of it, before and after, too
    in_kernel = float(now["system_ns"].sum()) >= _KERNEL * float(_both(now).sum())
    waited_ns = min(starved(pid, episode, view).waited_ns, needed_ns)
    return Ran(max(0.0, total), waited_ns, needed_ns, usual, in_kernel, int(start_ticks(now[-1:])[0]))


def own(episode: Episode, view: View) -> Ran | None:
    """Of the episode's own process."""
    return view.once(_own, episode)


def _own(episode: Episode, view: View) -> Ran | None:
    return ran(episode.pid, episode, view) if episode.pid is not None and episode.pid > 0 else None


def _together(begins: np.ndarray, ends: np.ndarray) -> list[tuple[int, int]]:
    """Spans that overlap as one."""
    out: list[tuple[int, int]] = []
    for from_ns, to_ns in sorted(zip(begins.tolist(), ends.tolist(), strict=True)):
        if out and from_ns <= out[-1][1]:
            out[-1] = out[-1][0], max(out[-1][1], to_ns)
        else:
            out.append((from_ns, to_ns))
    return out


def _both(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows["user_ns"] + rows["system_ns"], np.float64)
