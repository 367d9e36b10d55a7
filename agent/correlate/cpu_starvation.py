"""Waits for a CPU: of the episode's own threads and of its servers, what ran instead, and whether a quota throttled
them. Shared by several causes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.correlate.catalogue import symptom_of
from agent.correlate.episode import Culprit, Episode
from agent.correlate.preemption import preempted
from agent.correlate.rows import groups
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View
from agent.correlate.waits import SHARE, SYSCALLS, on_peers, spent
from agent.correlate.words import process, text
from agent.tables import TABLES

CPU = TABLES["resource"].code("kind", "cpu")
HOSTS = b"steal", b"pressure"  # waits of the whole host, not of a process
_BY = ("by_pid", "by_comm")
READS = {
    **SYSCALLS,
    "cpu_wait": (*_BY, "interval_ns", "wait_ns"),
    "cpu_delay": (*_BY, "tid", "duration_ns"),
    "resource": ("kind", "object", "waited_ns"),
}

_SATURATED = 0.8


@dataclass(frozen=True)
class CpuStarvation:
    """waited_ns: how long a process's threads were ready to run, but did not. by: (comm, pid) of the process that ran
    meanwhile, if its program ran for SHARE of it (of several processes of that name, the one that ran longest); by_ns:
    how long that program ran. group: the cgroup with the quota that throttled it, for throttled_ns. stolen_ns: by the
    hypervisor, of all CPUs; pressed_ns: while any task of the host waited (PSI).
    """

    waited_ns: float
    by: tuple[str, int] | None = None
    by_ns: float = 0.0
    group: str = ""
    throttled_ns: float = 0.0
    stolen_ns: float = 0.0
    pressed_ns: float = 0.0

    @property
    def detail(self) -> str:
        if self.throttled_ns >= SHARE * self.waited_ns and self.throttled_ns > self.by_ns * SHARE and self.group:
            return "throttled"
        return "preempted" if self.by else "steal" if self.stolen_ns > self.waited_ns > 0 else ""

    @property
    def culprit(self) -> Culprit:
        if self.detail == "throttled":
            return Culprit(object=self.group)
        return Culprit(self.by[1], self.by[0]) if self.by and self.detail == "preempted" else Culprit()

    @property
    def why(self) -> str:
        """In words, to follow "for a CPU"."""
        if self.detail == "throttled":
            return f", withheld by the quota of its cgroup {self.group}"
        if self.by and self.detail == "preempted":
            return f", while {process(*self.by)} ran"
        return ", while the hypervisor ran others" if self.detail == "steal" else ""


def inside_ns(episode: Episode, view: View) -> float:
    """How long the threads with the episode's slow decisions waited for a CPU within them."""
    return view.once(_inside_ns, episode)


def _inside_ns(episode: Episode, view: View) -> float:
    if not symptom_of(episode).inside:
        return 0.0
    return float(spent(episode, view, "cpu_delay")[0]["duration_ns"].sum())


def starved(pid: int, episode: Episode, view: View) -> CpuStarvation:
    """For one process, during the episode."""
    rows = preempted(view.rings["cpu_wait"], pid, episode)
    single = view.during("cpu_delay", episode, 0)
    single = single[single["pid"] == pid]
    waited = float(max(rows["wait_ns"].sum(), single["duration_ns"].sum()))
    who, by_ns = _by(rows, "wait_ns") if len(rows) else _by(single, "duration_ns")
    itself_ns = float(rows["wait_ns"][rows["by_pid"] == pid].sum())  # for its own other threads
    resources = view.rings["resource"].between(episode.start_ns, episode.end_ns + SECOND)
    resources = resources[(resources["kind"] == CPU) & (resources["waited_ns"] > 0)]
    group, throttled = "", 0.0
    mine = resources[(resources["pid"] == pid) & ~np.isin(resources["object"], HOSTS)]
    for i in groups([mine["object"]])[0] if len(mine) else ():
        ns = float(mine["waited_ns"][mine["object"] == mine["object"][i]].sum())
        if ns > throttled:
            group, throttled = text(mine["object"][i]), ns
    return CpuStarvation(
        waited,
        who if by_ns >= max(SHARE * waited, itself_ns) else None,
        by_ns,
        group,
        throttled,
        *(float(resources["waited_ns"][resources["object"] == of].sum()) for of in HOSTS),
    )


def _by(rows: np.ndarray, column: str) -> tuple[tuple[str, int] | None, float]:
    """The process that ran for most of these waits. The process's own threads and an idle CPU do not count."""
    rows = rows[(rows["by_pid"] > 0) & (rows["by_pid"] != rows["pid"])]
    if not len(rows):
        return None, 0.0
    of_name = groups([rows["by_comm"]])[1]  # processes of one program are added up
    sums = np.bincount(of_name, rows[column])
    rows = rows[of_name == int(np.argmax(sums))]
    first, group = groups([rows["by_pid"]])
    row = rows[first[int(np.argmax(np.bincount(group, rows[column])))]]
    return (text(row["by_comm"]), int(row["by_pid"])), float(np.max(sums))


def cpu_share(episode: Episode, view: View) -> float:
    """Share of the lost time that was a wait for a CPU: in the decisions' own threads, and in local servers that they
    waited for.
    """
    return view.once(_cpu_share, episode)


def _cpu_share(episode: Episode, view: View) -> float:
    if not symptom_of(episode).inside:
        return 0.0
    lost = spent(episode, view, "slow_syscall")[1]
    own = inside_ns(episode, view) / lost * (1 - elsewhere(episode, view)) if lost else 0.0
    theirs = sum(p.share for p in on_peers(episode, view) if p.starving and p.server)
    return min(1.0, own + theirs)


def elsewhere(episode: Episode, view: View) -> float:
    """Share of the slowest request that was spent at a server, or in a network, as reported there. A CPU would not have
    helped meanwhile.
    """
    return max(
        (min(1.0, p.longest / max(episode.value, 1.0)) for p in on_peers(episode, view) if p.reported_by_peer),
        default=0.0,
    )


def cpu_saturated(episode: Episode, view: View) -> bool:
    """Whether the host's processes waited for CPUs for most of each second, and longer than in the minute before. Then
    a writer to a disk also waits for kernel threads, which are not visible.
    """
    ring = view.rings["cpu_wait"]
    now = ring.between(episode.start_ns, episode.end_ns + SECOND)
    before = ring.between(episode.start_ns - 60 * SECOND, episode.start_ns)
    rates = [_a_second(rows) for rows in (now, before)]
    return rates[0] > _SATURATED and rates[0] > 1.5 * rates[1]


def _a_second(rows: np.ndarray) -> float:
    _, first = np.unique(rows["t_ns"], return_index=True)
    lasted = float(rows["interval_ns"][first].sum())
    return float(rows["wait_ns"].sum()) / lasted if lasted else 0.0
