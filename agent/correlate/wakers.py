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


def through_threads(rows: np.ndarray) -> np.ndarray:
    """With the process that woke the first of several threads of a process in the same call, where each woke the next:
    a pipe's reader wakes one writer only.
    """
    passed = (rows["waker_pid"] == rows["pid"]) & (rows["pid"] > 0)
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
