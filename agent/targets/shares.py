"""Who may have how many of the descriptors that probes take: no process and no user can take what the others' libraries
need.
"""

from __future__ import annotations

import errno
import resource
from collections import Counter
from typing import NamedTuple

from agent.kernel.limits import MOST_DESCRIPTORS, OTHERS_SHARE, PROBE_SHARE, PROCESS_SHARE, ROOT_SHARE, USER_SHARE


class Owner(NamedTuple):
    """Who brought a file: a process (0: the host itself), its real user, and its name for people."""

    pid: int
    uid: int
    comm: str = ""

    def __str__(self) -> str:
        return f"used by {self.comm or '?'}, pid {self.pid}" if self.pid else "of this host"


class OverShareError(OSError):
    """A share is used up; ``strerror`` says whose, ``remedy`` what to do."""

    remedy = "raise LimitNOFILE of tickscope (ulimit -n), of which half is for probes"


def raise_soft_limit() -> int:
    """Gives this process the descriptors that its hard limit allows, within reason; how many that are."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


class Shares:
    """Counts descriptors by process and user. limit: all that this process may have; by default its soft limit."""

    def __init__(self, limit: int = 0) -> None:
        soft = limit or resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.total = int((soft if soft != resource.RLIM_INFINITY else MOST_DESCRIPTORS) * PROBE_SHARE)
        self._pids: Counter[int] = Counter()
        self._uids: Counter[int] = Counter()

    @property
    def used(self) -> int:
        return self._uids.total()

    def refusal(self, owner: Owner, n: int) -> str:
        """Why this owner may not have n more; empty where he may."""
        of_user = self._uids[owner.uid] + n
        whose = "user" if owner.uid else "root"
        share = int(self.total * (USER_SHARE if owner.uid else ROOT_SHARE))
        if owner.pid and self._pids[owner.pid] + n > (mine := int(self.total * PROCESS_SHARE)):
            return f"this process's share of probe descriptors is used up ({mine})"
        if of_user > share:
            return f"{whose} {owner.uid}'s share of probe descriptors is used up ({share})".replace(
                "root 0's", "root's"
            )
        if owner.uid and self.used - self._uids[0] + n > (others := int(self.total * OTHERS_SHARE)):
            return f"the share of all users but root is used up ({others} probe descriptors)"
        return f"all {self.total} probe descriptors are used" if self.used + n > self.total else ""

    def take(self, owner: Owner, n: int) -> None:
        """Raises OverShareError."""
        why = self.refusal(owner, n)
        if why:
            raise OverShareError(errno.EDQUOT, why)
        self._pids[owner.pid] += n
        self._uids[owner.uid] += n

    def give_back(self, owner: Owner, n: int) -> None:
        for counter, key in ((self._pids, owner.pid), (self._uids, owner.uid)):
            counter[key] -= n
            if counter[key] <= 0:
                del counter[key]
