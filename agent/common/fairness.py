"""Fairness between the users of this host: no user takes what others need (the threat model in docs/security.md).

One rule: a user may have a quarter of anything, and all users but root and the agent's own three quarters together.
``Places`` divides a number of things, ``Budget`` a rate, ``UserQueues`` a queue, ``earlier`` the rows of an array.
``UpperBound`` describes a bound that an operator can meet; docs/limits.md is generated from them.

Pure, standard library only (``earlier`` needs numpy).
"""

from __future__ import annotations

import errno
import os
from collections import Counter, deque
from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from agent.common.recent import Recent

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")
#: The part that one user may have, and that is reserved for root.
PART = 4
#: Users whose budgets are kept.
REMEMBERED = 1024


class UpperBound(NamedTuple):
    """A bound that an operator can meet. Declared as a constant of the module that uses it.

    area: its section of docs/limits.md. most: number, or text if there are several. then: what happens beyond. shown:
    where the operator sees that it was reached. shared: a user has a quarter of it.
    """

    area: str
    what: str
    most: int | float | str
    then: str
    shown: str
    unit: str = ""
    setting: str = "-"
    shared: bool = False

    def text(self) -> str:
        """The value as text."""
        if isinstance(self.most, str):
            return self.most
        each = f", {self.most / PART:,g} per user" if self.shared else ""
        return f"{self.most:,.12g} {self.unit}".rstrip() + each


class NoPlaceError(OSError):
    """No place is left for this user; ``strerror`` is the reason, ``remedy`` what to do."""

    remedy = "see docs/limits.md"


class Places:
    """Counts how many of ``limit`` places each user has. Users: uids, or other keys if there is no uid.

    a_user: maximum per user; a quarter by default. what: what is counted, for messages.
    """

    def __init__(self, limit: int, a_user: int | None = None, what: str = "places") -> None:
        self.limit, self.others, self._what = limit, limit - limit // PART, what
        self.a_user = limit // PART if a_user is None else a_user
        self._trusted = {0, os.geteuid()}
        self._taken: Counter[Hashable] = Counter()

    @property
    def used(self) -> int:
        return self._taken.total()

    def refusal(self, uid: Hashable, n: int = 1) -> str:
        """Why this user may not have ``n`` more; empty if there is room."""
        if uid not in self._trusted:
            if self._taken[uid] + n > self.a_user:
                return f"user {uid}'s share of {self._what} is used up ({self.a_user})"
            if self.used - sum(self._taken[one] for one in self._trusted) + n > self.others:
                return f"the share of all users but root is used up ({self.others} {self._what})"
        return f"all {self.limit} {self._what} are used" if self.used + n > self.limit else ""

    def take(self, uid: Hashable, n: int = 1) -> None:
        """Takes ``n`` places. Raises NoPlaceError."""
        if why := self.refusal(uid, n):
            raise NoPlaceError(errno.EDQUOT, why)
        self._taken[uid] += n

    def give_back(self, uid: Hashable, n: int = 1) -> None:
        self._taken[uid] -= n
        if not self._taken[uid]:
            del self._taken[uid]


class Budget:
    """A token bucket for each user, one for all users but root, and one for all. A user in debt must wait for longer.

    per_s: tokens per second for all. most: size of the bucket for all. root: whether root is limited, too. Times are ns
    of any one clock.
    """

    def __init__(self, per_s: float, most: float, root: bool = True) -> None:
        self._per_s, self._most, self._root = per_s, most, root
        self._trusted = {0, os.geteuid()}
        #: (tokens left, time); the user whose last spending is oldest is forgotten.
        self._buckets = Recent[Hashable, tuple[float, int]](REMEMBERED)

    def left(self, uid: int, now_ns: int) -> float:
        """Tokens that this user may spend now; negative for a debt, infinite without a bound."""
        return min((self._filled(name, part, now_ns) for name, part in self._of(uid)), default=float("inf"))

    def spend(self, uid: int, tokens: float, now_ns: int, of_all: bool = True) -> None:
        """Takes tokens, possibly into debt. of_all: from the bucket for all, too."""
        for name, part in self._of(uid):
            if of_all or name != "all":
                self._buckets[name] = self._filled(name, part, now_ns) - tokens, now_ns

    def ready_ns(self, uid: int, now_ns: int) -> int:
        """The earliest time at which tokens are left."""
        waits = [-self._filled(name, part, now_ns) / (self._per_s * part) for name, part in self._of(uid)]
        return now_ns + max(0, int(max(waits, default=0) * 1e9) + 1)

    def _of(self, uid: int) -> list[tuple[Hashable, float]]:
        """A user's buckets, each with its part of the rate and size."""
        whole: list[tuple[Hashable, float]] = [("all", 1.0)] if self._root else []
        return whole if uid in self._trusted else [*whole, ("others", 1 - 1 / PART), (uid, 1 / PART)]

    def _filled(self, name: Hashable, part: float, now_ns: int) -> float:
        left, since_ns = self._buckets.get(name, (self._most * part, now_ns))
        return min(self._most * part, left + self._per_s * part * max(0, now_ns - since_ns) / 1e9)


class UserQueues(Generic[T]):
    """A queue per user, first in, first out. An element is queued once."""

    def __init__(self, limit: int) -> None:
        self._places = Places(limit)
        self._of: dict[int, deque[T]] = {}

    def __len__(self) -> int:
        return self._places.used

    def users(self) -> list[int]:
        return list(self._of)

    def put(self, uid: int, one: T) -> bool:
        """False if there is no room."""
        if one not in self._of.get(uid, ()):
            if self._places.refusal(uid):
                return False
            self._places.take(uid)
            self._of.setdefault(uid, deque()).append(one)
        return True

    def take(self, uid: int) -> T:
        """Removes and returns the user's oldest element."""
        first = self._of[uid].popleft()
        self._places.give_back(uid)
        if not self._of[uid]:
            del self._of[uid]
        return first

    def clear(self) -> None:
        for uid in self.users():
            while uid in self._of:
                self.take(uid)


def earlier(users: np.ndarray) -> np.ndarray:
    """The number of earlier rows of the same user for each row, shape (n,). Rows sorted by it alternate
    between users.
    """
    import numpy as np

    _, of = np.unique(users, return_inverse=True)
    order = np.argsort(of.reshape(-1), kind="stable")
    of = of.reshape(-1)[order]
    out = np.empty(len(users), np.int64)
    out[order] = np.arange(len(users)) - np.searchsorted(of, of)
    return out
