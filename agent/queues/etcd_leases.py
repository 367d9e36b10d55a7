"""The leases of an etcd cluster, as timers (agent/queues/timers.py).

A poll lists them and asks for the time to live of some, in turns. etcd has it in whole seconds, so that each answer
bounds the end of a lease; the bounds of several answers are joined until the lease is renewed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from agent.common.clocks import boot_ns
from agent.common.fairness import UpperBound
from agent.common.http_get import HttpDown, TooLarge
from agent.queues.etcd_gateway import EtcdMember, LeaseState, NotEtcd
from agent.queues.timers import QueueTimer

MAX_LEASES = 1024
ASKED, ASKED_S = 20, 0.1  # leases that a poll asks for, and the time that it takes for all requests
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "queues",
        "leases of an etcd cluster",
        MAX_LEASES,
        f"those that end first are queried, {ASKED} per poll; the others are counted",
        "`timer_effect.consequence`",
    ),
)
NAME = b"leases"  #: ``destination`` of the timers
_LIST_BYTES, _KEYS_BYTES = 1 << 20, 64 << 10
#: Listing takes at most one part in so many of the time, if it takes longer than _CHEAP_S.
_PART, _CHEAP_S = 20, 0.02
_RETRY_NS = 5_000_000_000
_S = 1_000_000_000


@dataclass
class _Lease:
    """least_ns, most_ns: when it ends, CLOCK_BOOTTIME, as of asked_ns (0: it was never asked for). wall_ns: the time
    since 1970 before which a leader with leases on both clocks does not end it; ahead_ns: REALTIME - BOOTTIME when it
    was granted or renewed.
    """

    number: int
    asked_ns: int = 0
    least_ns: int = 0
    most_ns: int = 0
    ahead_ns: int = 0
    wall_ns: int = 0
    key: bytes = b""
    with_keys: bool = True

    def see(self, found: LeaseState, from_ns: int, to_ns: int) -> None:
        """What was answered between these times, CLOCK_BOOTTIME."""
        left_s, now_ns = found.left_s, time.time_ns()
        least_ns = from_ns + (left_s - (left_s <= 0)) * _S  # what is left was rounded towards 0
        most_ns = to_ns + (left_s + (left_s >= 0)) * _S
        if not self.asked_ns or least_ns > self.most_ns or most_ns < self.least_ns:  # renewed
            self.least_ns, self.most_ns, self.wall_ns = least_ns, most_ns, 0
            self.ahead_ns = now_ns - boot_ns()
        self.least_ns, self.most_ns = max(self.least_ns, least_ns), min(self.most_ns, most_ns)
        # A lease that is due by the wall clock alone (etcd 3.4, after a jump forward) gets a new time of it, 3 s later.
        early_ns = now_ns if self.least_ns > to_ns else 0
        self.wall_ns = max(self.wall_ns, self.least_ns + self.ahead_ns, early_ns)
        self.asked_ns, self.key = to_ns, found.key or self.key

    def timer(self, polled_ns: int) -> QueueTimer:
        name = b"%x %s" % (self.number, self.key) if self.key else b"%x" % self.number
        if not self.asked_ns:
            return QueueTimer(NAME, name, "lease", unknown="its time to live was not queried yet")
        if self.asked_ns < polled_ns and self.least_ns < polled_ns:
            return QueueTimer(NAME, name, "lease", unknown="renewed or overdue since its time to live was queried")
        return QueueTimer(NAME, name, "lease", due_wall_ns=self.wall_ns, due_ns=self.least_ns)


class Leases:
    """The leases of one cluster."""

    def __init__(self) -> None:
        self._known: dict[int, _Lease] = {}
        self._more = 0
        self._list_ns = 0
        self._problem = ""
        self._keys = True  # whether the user may see the names of keys

    def timers(self, member: EtcdMember, deadline_s: float) -> list[QueueTimer]:
        """As of now. Raises nothing."""
        polled_ns, until_s = boot_ns(), time.monotonic() + ASKED_S
        if polled_ns >= self._list_ns:
            self._problem = self._tried(self._list, member, deadline_s)
        if not self._problem:
            turns = sorted(self._known.values(), key=lambda one: (one.least_ns > polled_ns, one.asked_ns))
            for one in turns[:ASKED]:
                if time.monotonic() < until_s and not self._problem:
                    self._problem = self._tried(self._ask, member, deadline_s, one)
        if self._problem:
            return [QueueTimer(NAME, b"", "lease", unknown=self._problem)]
        found = [one.timer(polled_ns) for one in self._known.values()]
        if self._more:
            why = f"only the {MAX_LEASES} leases that end first are queried"
            found.append(QueueTimer(NAME, b"", "lease", timers=self._more, unknown=why))
        return found

    def _tried(self, what: Callable[..., None], *arguments: object) -> str:
        """Why it failed; empty: it did not. Then the next try is in a while."""
        try:
            what(*arguments)
            return ""
        except TooLarge:
            why = f"there are more leases than are read ({_LIST_BYTES >> 20} MB)"
        except HttpDown as error:
            why = f"leases: {error}"
        except NotEtcd as error:
            why = f"leases: an answer is not that of etcd's gateway: {error}"
        self._list_ns = boot_ns() + _RETRY_NS
        return why

    def _list(self, member: EtcdMember, deadline_s: float) -> None:
        began_s = time.monotonic()
        numbers = member.leases(deadline_s, _LIST_BYTES)
        took_s = time.monotonic() - began_s
        self._list_ns = boot_ns() + (int(_PART * took_s * _S) if took_s > _CHEAP_S else 0)
        self._known = {one: self._known.get(one) or _Lease(one) for one in numbers[:MAX_LEASES]}
        self._more = len(numbers) - len(self._known)

    def _ask(self, member: EtcdMember, deadline_s: float, one: _Lease) -> None:
        from_ns, keys = boot_ns(), self._keys and one.with_keys and not one.key
        try:
            found = member.lease(one.number, deadline_s, _KEYS_BYTES, keys=keys)
        except TooLarge:
            one.with_keys = False
            return
        except HttpDown as error:
            if not keys or error.status not in (400, 401, 403):
                raise
            self._keys = False
            return
        if found is None:
            self._known.pop(one.number, None)
        else:
            one.see(found, from_ns, boot_ns())
