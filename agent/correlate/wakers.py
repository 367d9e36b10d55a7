"""Who ended a blocked call, from rows of ``slow_syscall``. Pure."""

from __future__ import annotations

import numpy as np

from agent.correlate.rows import groups
from agent.tables import TABLES

#: Calls that return when the time is over that the program asked for.
REQUESTED = frozenset((b"clock_nanosleep", b"nanosleep"))
#: Calls that wait for any of several events, or for a time.
ANY = (b"epoll_wait", b"epoll_pwait", b"epoll_pwait2", b"poll", b"ppoll", b"select", b"pselect6")
#: What another process's call makes ready to be written to, or read from; or a file system that it serves.
_ENDS = (b"pipe", b"socket", b"char device", b"eventfd", b"fuse")
_SLOW = TABLES["slow_syscall"].code("kind", "slow")
_THREADS = 4  # of one program that wait for each other
#: Threads that wait for one lock in turn; of a wait, from which the last wait of who ended it counts.
_CHAIN, _HELD = 16, 0.5
_AGAIN_NS = 10_000_000  # from a time-out to the next call
_SOON_NS = 50_000_000  # from one thread's wake-up to the next one's


def blamed(rows: np.ndarray) -> np.ndarray:
    """The process that held the lock, or ended the wait, of each call; 0 if there is none. Waits for disks end in
    interrupts, whatever process these interrupt, and so do waits for a time.
    """
    waker = rows["waker_pid"].clip(0)
    waker[(rows["kind"] == _SLOW) & ~np.isin(rows["fd_type"], _ENDS) | np.isin(rows["syscall"], [*REQUESTED])] = 0
    return np.where(rows["holder_pid"] > 0, rows["holder_pid"], waker)


def timed_out(rows: np.ndarray) -> np.ndarray:
    """Which of the calls wait for any of several events, and were ended by none that a process of this host caused."""
    return np.asarray((rows["waker_pid"] <= 0) & np.isin(rows["syscall"], ANY))


def all_known(tids: np.ndarray) -> frozenset[int]:
    """These threads; none if some of them are not known."""
    return frozenset(tids.tolist()) if (tids > 0).all() else frozenset()


def of_threads(rows: np.ndarray, tids: frozenset[int], pid: int | None) -> np.ndarray:
    """Those of these threads of a process, and of its threads that these waited for, and so on."""
    waits = rows[blamed(rows) == pid]
    for _ in range(_THREADS):
        more = tids | all_known(waits["waker_tid"][np.isin(waits["tid"], [*tids])])
        if more == tids:
            break
        tids = more
    return np.asarray(rows[np.isin(rows["tid"], [*tids])])


def through_last_waits(rows: np.ndarray, pid: int | None, tids: frozenset[int]) -> tuple[np.ndarray, np.ndarray]:
    """(a copy of the rows, which of them were changed): a call of one of these threads that another thread of the
    process ended (it let go of a lock) has the end of that thread's own last wait, if that took half of the time. Of
    several threads that woke one another the first one's counts. A lock may be held by a session whose client is idle.
    Calls that run into their time-out and are made again are one wait. If the last one did just when others in the same
    call were woken, it counts as theirs.
    """
    passed, within = np.zeros(len(rows), np.bool_), (rows["kind"] != _SLOW) & (rows["pid"] == pid)
    within &= ~np.isin(rows["syscall"], [*ANY, *REQUESTED])
    own = within & (rows["waker_pid"] == pid) & (rows["waker_tid"] > 0)
    calls = rows.copy()
    for i in np.flatnonzero((own | (within & (rows["waker_pid"] <= 0))) & np.isin(rows["tid"], [*tids])).tolist():
        begun, t_ns = _since(rows, i), int(rows["t_ns"][i])
        calls["duration_ns"][i] = t_ns - begun
        at, tried = i if own[i] else _beside(rows, own, i, begun), {int(rows["tid"][i])}
        while own[at] and int(rows["waker_tid"][at]) not in tried and len(tried) < _CHAIN:
            tried.add(int(rows["waker_tid"][at]))
            soonest = int(rows["t_ns"][at]) - max(int(rows["waker_awake_ns"][at]), 0) - _SOON_NS
            near = (
                (rows["tid"] == rows["waker_tid"][at]) & (rows["t_ns"] <= rows["t_ns"][at]) & (rows["t_ns"] >= soonest)
            )
            if not near.any():
                break
            last = int(np.flatnonzero(near)[np.argmax(rows["t_ns"][near])])
            if rows["t_ns"][last] - max(begun, _since(rows, last)) < _HELD * (t_ns - begun):
                break
            at = last
        if at != i and (rows["waker_pid"][at] > 0 or rows["syscall"][at] in REQUESTED) and not own[at]:
            passed[i] = True
            for name in ("waker_pid", "waker_comm", "waker_tid"):
                calls[name][i] = rows[name][at]
            if rows["syscall"][at] in REQUESTED:
                calls["syscall"][i] = rows["syscall"][at]
    return calls, passed


def _beside(rows: np.ndarray, own: np.ndarray, at: int, begun: int) -> int:
    """A call like that one that ended then, too, and was woken; itself if there is none."""
    like = own & (rows["syscall"] == rows["syscall"][at]) & (np.abs(rows["t_ns"] - rows["t_ns"][at]) <= _SOON_NS)
    least = _HELD * (rows["t_ns"][at] - begun)
    return next(
        (i for i in np.flatnonzero(like).tolist() if rows["t_ns"][i] - max(begun, _since(rows, i)) >= least), at
    )


def _since(rows: np.ndarray, at: int) -> int:
    """When that call began, or the first of those that its thread made before, each until a time-out."""
    begun = int(rows["t_ns"][at] - rows["duration_ns"][at])
    same = (rows["tid"] == rows["tid"][at]) & (rows["syscall"] == rows["syscall"][at]) & (rows["waker_pid"] <= 0)
    same &= rows["t_ns"] <= begun
    for t_ns, took in sorted(zip(rows["t_ns"][same].tolist(), rows["duration_ns"][same].tolist(), strict=True))[::-1]:
        if begun - t_ns > _AGAIN_NS:
            break
        begun = t_ns - took
    return begun


def through_threads(rows: np.ndarray) -> np.ndarray:
    """With the process that woke the first of several threads of a process in the same call, where each woke the next:
    a pipe's reader wakes one writer only.
    """
    passed = (rows["waker_pid"] == rows["pid"]) & (rows["pid"] > 0) & (rows["fd_type"] != b"")
    if not passed.any():
        return rows
    _, group = groups([rows[name] for name in ("pid", "syscall", "fd_type")])
    order = np.lexsort((passed, rows["t_ns"], group))
    group, t_ns = group[order], rows["t_ns"][order]
    first = ~passed[order]
    first[0] = True
    first[1:] |= (group[1:] != group[:-1]) | (t_ns[1:] - t_ns[:-1] > _SOON_NS)
    source = order[np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))]
    rows = rows.copy()
    for name in ("waker_pid", "waker_comm", "waker_tid"):
        rows[name][order] = rows[name][source]
    return rows
