"""Who ended a blocked call, from rows of ``slow_syscall``. Pure."""

from __future__ import annotations

import numpy as np

from agent.correlate.calls import SO_FAR
from agent.correlate.local import is_loopback
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
_CALLS = 64  # of one process, the longest ones
_LONG_NS = 50_000_000  # shorter waits do not end the time that a thread was awake
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
    call were woken, it counts as theirs. A thread that last waited for any of several events handed out work.
    """
    passed, by, begun = np.zeros(len(rows), np.bool_), blamed(rows), _begun(rows)
    over = (rows["pid"] == pid) & (rows["basis"] != SO_FAR)
    sleeps = over & (rows["kind"] != _SLOW) & ~np.isin(rows["syscall"], [*ANY, *REQUESTED])
    own, calls = sleeps & (rows["waker_pid"] == pid) & (rows["waker_tid"] > 0), rows.copy()
    again = sleeps & (rows["waker_pid"] <= 0) & (begun < rows["t_ns"] - rows["duration_ns"])
    last = over & (rows["duration_ns"] >= _LONG_NS)  # as in waker_awake_ns
    candidates = np.flatnonzero((own | again) & np.isin(rows["tid"], [*tids]))
    longest = np.argsort(begun[candidates] - rows["t_ns"][candidates], kind="stable")[:_CALLS]
    for i in candidates[longest].tolist():
        t_ns, half_ns = int(rows["t_ns"][i]), _HELD * (int(rows["t_ns"][i]) - int(begun[i]))
        long = rows["t_ns"] - np.maximum(begun, begun[i]) >= half_ns
        at, tried = i, {int(rows["tid"][i])}
        if not own[i]:
            like = own & long & (rows["syscall"] == rows["syscall"][i]) & (np.abs(rows["t_ns"] - t_ns) <= _SOON_NS)
            at = int(np.argmax(like)) if like.any() else i
        while own[at] and int(rows["waker_tid"][at]) not in tried and len(tried) < _CHAIN:
            tried.add(int(rows["waker_tid"][at]))
            until_ns = int(rows["t_ns"][at])
            near = last & (rows["tid"] == rows["waker_tid"][at]) & (rows["t_ns"] <= until_ns)
            near &= rows["t_ns"] >= until_ns - max(int(rows["waker_awake_ns"][at]), 0) - _SOON_NS
            newest = int(np.argmax(np.where(near, rows["t_ns"], -1)))
            if not near[newest] or not long[newest]:
                break
            at = newest
        asked = rows["syscall"][at] in REQUESTED
        if at != i and not own[at] and (asked or by[at] > 0) and _tells(rows, at):
            passed[i] = True
            calls["duration_ns"][i] = t_ns - begun[i]
            for name in ("waker_pid", "waker_comm", "waker_tid", "holder_pid", "holder_comm", "file"):
                calls[name][i] = rows[name][at]
            if asked:
                calls["syscall"][i] = rows["syscall"][at]
    return calls, passed


def _tells(rows: np.ndarray, at: int) -> bool:
    """Whether the process that ended that wait is known: on this host, and by a call that waits for it alone."""
    peer = rows["peer"][at].tobytes()
    return is_loopback(peer) if any(peer) else rows["syscall"][at] not in ANY


def _begun(rows: np.ndarray) -> np.ndarray:
    """When each call began, or the first of those that its thread made just before, each of which no process ended."""
    begun = rows["t_ns"] - rows["duration_ns"]
    if not len(rows):
        return np.asarray(begun)
    order = np.lexsort((rows["t_ns"], np.unique(rows["syscall"], return_inverse=True)[1], rows["tid"]))
    its = rows[order]
    goes_on = np.zeros(len(rows), np.bool_)
    goes_on[1:] = (its["tid"][1:] == its["tid"][:-1]) & (its["syscall"][1:] == its["syscall"][:-1])
    goes_on[1:] &= (its["waker_pid"][:-1] <= 0) & (its["basis"][:-1] != SO_FAR)
    gap_ns = begun[order][1:] - its["t_ns"][:-1]
    goes_on[1:] &= (gap_ns >= 0) & (gap_ns <= _AGAIN_NS)
    first = np.maximum.accumulate(np.where(goes_on, 0, np.arange(len(rows))))
    out = np.empty_like(begun)
    out[order] = begun[order][first]
    return np.asarray(out)


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
