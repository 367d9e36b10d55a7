"""A system call was blocked on something other than a peer: files, file locks, full pipes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from agent.correlate.calls import lasted
from agent.correlate.catalogue import Cause
from agent.correlate.computing import READS as COMPUTING
from agent.correlate.computing import own
from agent.correlate.cpu_starvation import READS, cpu_saturated, cpu_share
from agent.correlate.episode import UNANSWERED, UNKNOWN_CULPRIT, Culprit, Episode, Verdict, item
from agent.correlate.profiles import READS as PROFILES
from agent.correlate.profiles import locked, locked_share, slept
from agent.correlate.resource_rules import DISK, full
from agent.correlate.resource_rules import READS as ROOM
from agent.correlate.rows import groups, known
from agent.correlate.thresholds import SECOND
from agent.correlate.view import NO_PEER, View
from agent.correlate.waits import PEERS, SHARE, SYSCALLS, WAITING, covered_by, slow_spans, spent
from agent.correlate.wakers import blamed
from agent.correlate.words import Words, process, render, text, value

#: Factors for a blocked call while the CPUs were busy, or a disk was full, which block calls, too.
_SATURATED, _FULL = 0.6, 0.6
#: ... for a wait for a lock of the program itself while it was busy on a CPU,
_LOCKS, _COMPUTED = ("futex",), 0.5
#: ... for a lock that another thread than the one with the request has waited for since before the request, as one
#: does that waits for its turn to lead,
_STANDBY = 0.5
#: ... and for a call of which only half of its time in a kernel lock is known.
_LOCKED, _HALF = 0.7, 0.5


def held_up(episode: Episode, view: View) -> Iterator[Verdict]:
    rows, lost, threaded = spent(episode, view, "slow_syscall")
    rows = rows[(rows["kind"] != WAITING) & (rows["peer"] == NO_PEER)]
    if not len(rows):
        yield Verdict(CAUSE.name, 0.0, "", "no system call of that process was blocked")
        return
    first, group = groups([rows["syscall"], rows["fd_type"]])
    totals = np.bincount(group, rows["duration_ns"])
    at = int(np.argmax(totals))
    mine = rows[group == at]
    beside = _beside(rows[group != at], mine)
    share = min(1.0, float(totals[at] + beside["duration_ns"].sum()) / lost) if lost else 0.0
    share = max(share, covered_by(np.concatenate([mine, beside]), slow_spans(episode, view)))
    call, fd = text(rows["syscall"][first[at]]), text(rows["fd_type"][first[at]])
    longest = float(mine["duration_ns"].max())
    culprit, ended = _holder(mine, episode.pid)
    held = bool((mine["holder_pid"] > 0).any())
    words = render(
        (
            "the system call {call}{on} of {who} was blocked for {longest}{by}{beside}"
            if len(mine) == 1
            else "the system call {call}{on} of {who} was blocked {times}, for up to {longest}{by}{beside}"
        ),
        call=call,
        on=_place(mine) or (" on a FUSE file system" if fd == "fuse" else f" on a {fd}" if fd else ""),
        who=process(episode.comm, episode.pid),
        times=value(len(mine), "time"),
        longest=lasted(mine[int(np.argmax(mine["duration_ns"]))], longest),
        by=_blamed(culprit, held, ended, episode),
        beside=render(", and {n} on that disk, too", n=value(len(beside), "other call")) if len(beside) else "",
    )
    entry = item(
        "slow_syscall",
        call,
        longest,
        "ns",
        column="duration_ns",
        fd_type=fd,
        file=culprit.object if culprit.pid else "",
        device=culprit.object if not culprit.pid else "",
        holder=process(culprit.comm, culprit.pid) if culprit.pid and held else "",
        woken_by=process(culprit.comm, culprit.pid) if culprit.pid and not held else "",
        calls=len(mine),
        share=round(share, 2),
        keys={"pid": episode.pid},
    )
    queued = float(mine["run_queue_ns"].clip(0).sum())
    yield Verdict(
        CAUSE.name,
        (
            (0.96 if threaded else 0.8)
            * (_SATURATED if not culprit.pid and cpu_saturated(episode, view) else 1.0)
            * (_COMPUTED if call in _LOCKS and (its := own(episode, view)) and its.busy else 1.0)
            * (_FULL if _disk_full(episode, view) else 1.0)
            * (_STANDBY if _stands_by(episode, mine) else 1.0)
            * (_LOCKED if culprit == UNKNOWN_CULPRIT and _in_a_lock(episode, view, longest) else 1.0)
            * share
            * (0.5 if queued > 0.5 * totals[at] else 1 - cpu_share(episode, view))
            if share >= SHARE
            else 0.0
        ),
        episode.scope,
        words,
        (entry, *slept(episode, view, call)),
        detail=call,
        culprit=culprit,
    )


def _stands_by(episode: Episode, calls: np.ndarray) -> bool:
    before = (calls["t_ns"] - calls["duration_ns"] < episode.start_ns) & (calls["holder_pid"] > 0)
    return episode.metric == UNANSWERED and bool((before & (calls["tid"] != episode.facts.get("tid"))).all())


def _beside(others: np.ndarray, mine: np.ndarray) -> np.ndarray:
    """Other calls on the disk of the longest one: a writer also syncs, and one disk delays both."""
    disk = mine["device"][int(np.argmax(mine["duration_ns"]))]
    return np.asarray(others[(others["device"] == disk) & (disk != b"")])


def _in_a_lock(episode: Episode, view: View, longest: float) -> bool:
    """Whether half of the calls' time, or of the longest one, was a wait for locks of the kernel."""
    rows = locked(episode, view)
    return float(rows["max_ns"].max(initial=0)) >= _HALF * longest or locked_share(episode, view, rows) >= _HALF


def _disk_full(episode: Episode, view: View) -> bool:
    """Whether some file system was full meanwhile: calls wait for it, and for its clean-up."""
    rows = view.rings["resource"].between(episode.start_ns - SECOND, episode.end_ns + SECOND)
    return bool((full(rows) & (rows["kind"] == DISK)).any())


def _holder(calls: np.ndarray, pid: int | None) -> tuple[Culprit, bool]:
    """The process that held the lock for most of the wait of these calls, and whether it had ended; else the other
    process that ended most of it; else the disk.
    """
    calls = calls[np.argsort(-calls["duration_ns"], kind="stable")]
    held = calls[calls["holder_pid"] > 0]
    if len(held):
        first, group = groups([held["holder_pid"], held["holder_start_ns"]])
        most = held[first[int(np.argmax(np.bincount(group, held["duration_ns"])))]]
        culprit = Culprit(int(most["holder_pid"]), text(most["holder_comm"]), text(most["file"]))
        return culprit, not known(most["holder_start_ns"])
    ended = calls[(by := blamed(calls)) > 0]
    if len(ended) and by[by > 0][0] != pid:
        return Culprit(int(ended["waker_pid"][0]), text(ended["waker_comm"][0])), False
    disk = text(calls["device"][0])
    return (Culprit(object=f"/dev/{disk}") if disk else UNKNOWN_CULPRIT), False


def _place(calls: np.ndarray) -> str:
    longest = calls[int(np.argmax(calls["duration_ns"]))]
    file, disk = text(longest["file"]), text(longest["device"])
    return (f" on {file}" if file else "") + (f" (disk {disk})" if file and disk else "")


def _blamed(culprit: Culprit, held: bool, ended: bool, episode: Episode) -> Words:
    if culprit.pid is None:
        return ""
    if not held:
        return render(", until {who} ended the wait", who=process(culprit.comm, culprit.pid))
    if culprit.pid == episode.pid:
        return "; another thread of it held the lock"
    if ended:
        return render(
            "; {who} took the lock and ended, and a process with its descriptor holds it",
            who=process("", culprit.pid),
        )
    return render("; {who} held the lock", who=process(culprit.comm, culprit.pid))


CAUSE = Cause(
    "syscall",
    70,
    "a system call was blocked, on something other than a peer",
    {
        **PEERS,
        **READS,
        **SYSCALLS,
        **ROOM,
        **COMPUTING,
        "off_cpu": PROFILES["off_cpu"],
        "lock_contention": PROFILES["lock_contention"],
    },
    "see what it works on: tickscope query slow_syscall --columns"
    " comm,syscall,fd_type,file,device,holder_comm,holder_pid,duration_ns; a disk, a lock, or a pipe that nobody reads",
    {"decision_latency": held_up, "accept_overflow": held_up, "service_latency": held_up, "blocked_time": held_up},
)
