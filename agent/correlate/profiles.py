"""On-demand profiles of an episode's process (agent/investigate/): its disk, where it slept, kernel locks. Rows come at
the end of the profile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.correlate.episode import Culprit, Episode, Evidence, item
from agent.correlate.thresholds import SECOND
from agent.correlate.view import View
from agent.correlate.words import text
from agent.tables import TABLES

READS = {
    "block_io": ("interval_ns", "device", "op", "count", "unfinished", "bytes", "sum_ns", "max_ns", "queued_ns"),
    "on_cpu": ("tid", "interval_ns", "syscall", "sum_ns", "user_stack"),
    "off_cpu": (
        "tid",
        "interval_ns",
        "state",
        "syscall",
        "kind",
        "count",
        "sum_ns",
        "max_ns",
        "kernel_stack",
        "waker_pid",
        "waker_tid",
        "waker_comm",
    ),
    "lock_contention": ("interval_ns", "lock", "kind", "path", "count", "sum_ns", "max_ns", "kernel_stack"),
    "syn_ack": ("interval_ns", "sport", "count", "sum_ns", "max_ns"),
}
_ALL, _WRITE = (TABLES["block_io"].code("op", name) for name in ("all", "write"))
_READY, _UNINTERRUPTIBLE = (TABLES["off_cpu"].code("state", name) for name in ("ready", "uninterruptible"))
_SLOW = TABLES["off_cpu"].code("kind", "slow")
HANDSHAKE = TABLES["lock_contention"].code("path", "handshake")
#: A profile begins within this time of its episode, and lasts for a few seconds.
_REACH_NS = 10 * SECOND
_MUCH_BYTES, _TIMES = 1 << 20, 4
_HALF = 0.5


def profiled(episode: Episode, view: View, table: str) -> np.ndarray:
    """Rows of profiles that overlap the episode."""
    rows = view.rings[table].between(episode.start_ns, episode.end_ns + _REACH_NS)
    return np.asarray(rows[rows["t_ns"] - rows["interval_ns"] <= episode.end_ns + SECOND])


@dataclass(frozen=True)
class Disk:
    """A disk during profiles: requests, the mean time of a request in it, and the slowest, ns. writer: the process that
    wrote most, if that is far more than the episode's process; bytes.
    """

    requests: int
    each_ns: float
    slowest_ns: float
    queued_ns: float
    writer: Culprit | None
    wrote: float


def disk(episode: Episode, view: View, name: str) -> Disk | None:
    """None if no profile covered it."""
    rows = profiled(episode, view, "block_io")
    rows = rows[rows["device"] == name.encode()] if name else rows[:0]
    whole = rows[rows["op"] == _ALL]
    if not len(whole):
        return None
    n = int((whole["count"] + whole["unfinished"].clip(0)).sum())
    writes = rows[(rows["op"] == _WRITE) & (rows["pid"] > 0)]
    own = float(writes["bytes"][writes["pid"] == episode.pid].sum())
    others = writes[writes["pid"] != episode.pid]
    writer, wrote = None, 0.0
    if len(others):
        pids = np.unique(others["pid"])
        each = [float(others["bytes"][others["pid"] == pid].sum()) for pid in pids]
        wrote = max(each)
        most = others[others["pid"] == pids[int(np.argmax(each))]][0]
        if wrote >= max(_MUCH_BYTES, _TIMES * own) and not text(most["comm"]).startswith("kworker"):
            writer = Culprit(int(most["pid"]), text(most["comm"]))
    total, queued = float(whole["sum_ns"].sum()), float(whole["queued_ns"].sum())
    return Disk(n, total / max(1, n), float(whole["max_ns"].max()), queued / max(1, n), writer, wrote)


def locked(episode: Episode, view: View) -> np.ndarray:
    """Waits of the episode's process for kernel locks: rows of ``lock_contention``."""
    rows = view.own(profiled(episode, view, "lock_contention"), episode)
    return np.asarray(rows[rows["path"] != HANDSHAKE])


def locked_share(episode: Episode, view: View, locked: np.ndarray) -> float:
    """The time of these rows of ``lock_contention``, as a share of what the profile saw the episode's process asleep in
    slow calls that no signal ends: it may begin after the longest call.
    """
    asleep = view.own(profiled(episode, view, "off_cpu"), episode)
    asleep = asleep[(asleep["kind"] == _SLOW) & (asleep["state"] == _UNINTERRUPTIBLE)]
    return float(locked["sum_ns"].sum()) / max(float(asleep["sum_ns"].sum()), 1.0) if len(asleep) else 0.0


def slept(episode: Episode, view: View, call: str) -> tuple[Evidence, ...]:
    """Where in the kernel the episode's process slept for longest in that call, as evidence; empty without a profile of
    it.
    """
    rows = view.own(profiled(episode, view, "off_cpu"), episode)
    rows = rows[(rows["syscall"] == call.encode()) & (rows["kind"] == _SLOW) & (rows["state"] != _READY)]
    if not len(rows):
        return ()
    row = rows[int(np.argmax(rows["sum_ns"]))]
    where = " < ".join(text(row["kernel_stack"]).split(";")[:4])
    return (
        item(
            "off_cpu",
            f"asleep in {call}",
            float(row["sum_ns"]),
            "ns",
            column="sum_ns",
            where=where,
            times=int(row["count"]),
            keys={"pid": episode.pid},
        ),
    )


@dataclass(frozen=True)
class RanIn:
    """Where a thread ran for most of a profile. where: its functions, innermost first; empty if they have no names."""

    tid: int
    ran_ns: float
    profiled_ns: float
    where: tuple[str, ...]


def ran_in(pid: int, episode: Episode, view: View) -> RanIn | None:
    """For the thread of a process that ran for longest; None if no profile has one that ran for half of the time."""
    rows = profiled(episode, view, "on_cpu")
    rows = rows[rows["pid"] == pid]
    if not len(rows):
        return None
    tids = np.unique(rows["tid"])
    mine = max((rows[rows["tid"] == tid] for tid in tids), key=lambda its: float(its["sum_ns"].sum()))
    ran_ns, profiled_ns = float(mine["sum_ns"].sum()), float(np.unique(mine["interval_ns"]).sum())
    if ran_ns < _HALF * profiled_ns:
        return None
    most = mine[int(np.argmax(mine["sum_ns"]))]
    where = tuple(frame for frame in text(most["user_stack"]).split(";") if frame and not frame.startswith("0x"))
    return RanIn(int(mine["tid"][0]), ran_ns, profiled_ns, where)
