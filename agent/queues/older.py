"""The processes that hold sockets older than the agent, from one walk of /proc while the agent is still privileged."""

from __future__ import annotations

import contextlib
import os
import time

import numpy as np
import numpy.typing as npt

from agent.columns import NULL_I64
from agent.common.process_stat import Stat, is_it, stat
from agent.limiters.intake import process_identity
from agent.log import log_message
from agent.queues.netlink import tcp_sockets

#: Time limit of the walk at start.
LIMIT_S = 0.5
_MANAGER = "systemd"


class OlderSockets:
    """Names processes by a socket's cookie, which is never reused.

    A socket that is held by a process and by some that it started belongs to the former (the master of a server's
    workers). A socket that is held by others, too, has no owner here. A service manager holds sockets for its services,
    and owns none that a service holds.

    Call as root when the BPF programs run already: they record later sockets. The walk ends after ``limit_s``; a log
    message says that the remaining sockets have no process. Those that several were seen to hold have none then.
    Raises OSError where the kernel refuses to list sockets.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        sockets, _, _ = tcp_sockets()
        cookies = dict(zip(sockets["inode"].tolist(), sockets["cookie"].tolist(), strict=True))
        cookies.pop(0, None)  # closed by its process, or not accepted yet
        found, complete = holders(cookies, limit_s)
        if not complete:
            log_message(
                f"tickscope: too many processes to scan in {limit_s} s: queues of some older connections will have"
                " no process"
            )
        shared = {pids: _eldest(pids) if complete else None for pids in map(frozenset, found.values()) if len(pids) > 1}
        owners = {cookie: shared.get(frozenset(pids), next(iter(pids))) for cookie, pids in found.items()}
        starts = {pid: process_identity(pid).start_ns for pid in {*owners.values()} if pid is not None}
        self._owners = {cookie: (pid, starts[pid]) for cookie, pid in owners.items() if pid is not None}

    @property
    def cookies(self) -> npt.NDArray[np.uint64]:
        return np.array([*self._owners], np.uint64)

    def name(self, rows: np.ndarray) -> None:
        """Fills pid, proc_start_ns and comm of rows of ``socket_queue`` that have no pid yet, if that process still
        runs.
        """
        now: dict[int, Stat | None] = {}
        for i in np.flatnonzero(rows["pid"] == NULL_I64).tolist():
            pid, start_ns = self._owners.get(int(rows["sock_id"][i]), (0, NULL_I64))
            if start_ns == NULL_I64:
                continue
            if pid not in now:
                now[pid] = stat(pid)
            its = now[pid]
            if its is not None and is_it(its, start_ns):
                rows["pid"][i], rows["proc_start_ns"][i], rows["comm"][i] = pid, start_ns, os.fsencode(its.comm)


def _eldest(pids: frozenset[int]) -> int | None:
    """The process among them that started all others, or their parents; None if there is none."""
    stats = {pid: its for pid in pids if (its := stat(pid)) is not None and its.comm != _MANAGER}
    first = [pid for pid, its in stats.items() if its.parent not in stats]
    return first[0] if len(first) == 1 else None


def holders(inodes: dict[int, int], limit_s: float) -> tuple[dict[int, set[int]], bool]:
    """(pids, whether all processes were seen in that time). inodes: of sockets -> a key, under which the pids that hold
    that socket are given.
    """
    found: dict[int, set[int]] = {}
    return found, not inodes or _walk(inodes, found, time.monotonic() + limit_s)


def _walk(keys: dict[int, int], found: dict[int, set[int]], end: float) -> bool:
    """Records under each key the pids that hold its inode; False if the time was up."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ended
            for fd in os.listdir(f"/proc/{name}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(f"/proc/{name}/fd/{fd}")
                    if target.startswith("socket:[") and (key := keys.get(int(target[8:-1]))):
                        found.setdefault(key, set()).add(int(name))
                if time.monotonic() > end:
                    return False
    return True


def older_sockets() -> OlderSockets | None:
    """None if sockets cannot be listed. Needs root."""
    try:
        return OlderSockets()
    except OSError as error:
        log_message(
            f"tickscope: cannot list existing sockets ({error.strerror}): queues of older connections will"
            " have no process"
        )
        return None
