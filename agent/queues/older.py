"""The processes that hold sockets older than the agent, from one walk of /proc while the agent is still privileged."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

import numpy as np

from agent.columns import NULL_I64
from agent.common.process_stat import stat
from agent.limiters.intake import Identity, process_identity
from agent.log import log_message
from agent.queues.netlink import tcp_sockets

#: Time limit of the walk at start.
LIMIT_S = 0.5


class OlderSockets:
    """Names processes by a socket's cookie, which is never reused.

    A socket that a process and some that it started hold belongs to the former (the master of a server's workers); one
    that others hold, too, has no owner here. Process 1 holds sockets for services and is no owner beside them.

    Call as root when the BPF programs run already: they record later sockets. The walk ends after ``limit_s``; a log
    message says that the remaining sockets have no process. Raises OSError where the kernel refuses to list sockets.
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
        self._owners = {
            cookie: (pid, process_identity(pid).start_ns)
            for cookie, pids in found.items()
            if (pid := _eldest(pids)) is not None
        }

    def name(self, rows: np.ndarray) -> None:
        """Fills pid, proc_start_ns and comm of rows of ``socket_queue`` that have no pid yet, if that process still
        runs.
        """
        now: dict[int, Identity] = {}
        for i in np.flatnonzero(rows["pid"] == NULL_I64).tolist():
            owner = self._owners.get(int(rows["sock_id"][i]))
            if owner is None:
                continue
            identity = now.get(owner[0]) or now.setdefault(owner[0], process_identity(owner[0]))
            if identity.start_ns == owner[1] != NULL_I64:
                rows["pid"][i], rows["proc_start_ns"][i], rows["comm"][i] = owner[0], identity.start_ns, identity.comm


def _eldest(pids: set[int]) -> int | None:
    """The process among them of which all others are descendants; None if there is none."""
    if len(pids) == 1:
        return next(iter(pids))
    pids = pids - {1}
    first = [pid for pid in pids if (its := stat(pid)) is not None and its.parent not in pids]
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


def names_of_older() -> Callable[[np.ndarray], None] | None:
    """A function that names the owners of sockets older than the BPF programs; None if sockets cannot be listed. Needs
    root.
    """
    try:
        return OlderSockets().name
    except OSError as error:
        log_message(
            f"tickscope: cannot list existing sockets ({error.strerror}): queues of older connections will"
            " have no process"
        )
        return None
