"""What a model of a limiter is: from the times that a limiter read, the decisions that it took. Pure; no clock is read
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

SECOND = 1_000_000_000
#: What a model can need to know of a limiter.
NEEDS = ("per_s", "burst", "count", "window_ns")


@dataclass(frozen=True)
class Limit:
    """What a limiter was told. 0 is not known, or not used by its algorithm.

    per_s: units a second; burst: the most at once (of a bucket: its size). count: units a window; window_ns: its
    length; slots: pieces of it.
    kept_ns: how long a window's counter lives after its last use; 0: as long as the window. patient: callers wait for
    their turn instead of being refused, and take their units all the same. start: units in a bucket at the first
    decision; None: it is full.
    """

    per_s: float = 0.0
    burst: float = 0.0
    count: float = 0.0
    window_ns: int = 0
    slots: int = 10
    kept_ns: int = 0
    patient: bool = False
    start: float | None = None


@dataclass(frozen=True)
class Arrivals:
    """Requests in the order in which a limiter took them, limiters (or keys of one) one after the other.

    t_ns: what the limiter's clock said, i64 (n,); it may go back. cost: units asked for, f64 (n,). starts: where each
    limiter's requests begin, i64 (k,), the first is 0.
    """

    t_ns: np.ndarray
    cost: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, t_ns: np.ndarray, cost: np.ndarray | None = None, starts: np.ndarray | None = None) -> Arrivals:
        """cost: 1 each, starts: one limiter, by default."""
        t = np.asarray(t_ns, np.int64)
        return cls(
            t,
            np.ones(len(t)) if cost is None else np.asarray(cost, np.float64),
            np.zeros(min(len(t), 1), np.int64) if starts is None else np.asarray(starts, np.int64),
        )

    def at(self, t_ns: np.ndarray) -> Arrivals:
        """The same requests by another clock."""
        return Arrivals(t_ns, self.cost, self.starts)

    def group(self) -> np.ndarray:
        """The number of each request's limiter, i64 (n,)."""
        begins = np.zeros(len(self.t_ns), np.int64)
        begins[self.starts[1:]] = 1
        return np.cumsum(begins)

    def runs(self, unit_ns: int = 1) -> Iterator[tuple[list[int], list[float]]]:
        """Times, in units of so many ns, and costs of each limiter."""
        t = (self.t_ns if unit_ns == 1 else self.t_ns // unit_ns).tolist()
        cost = self.cost.tolist()
        bounds = [*self.starts.tolist(), len(t)]
        if len(bounds) == 2:
            yield t, cost
        else:
            yield from ((t[a:b], cost[a:b]) for a, b in pairwise(bounds))


@dataclass(frozen=True)
class Model:
    """One algorithm, as one implementation has it.

    decide: who was admitted at once, bool (n,). needs: which of ``NEEDS`` must be known. memory: after how many ns a
    past request has no effect any more (a bucket: until it is full). has_level: a bucket, which goes by
    ``Limit.start``. counts_refused: refused requests change what it holds, too.
    window: the length of windows that lie at multiples of it on the clock, 0 where there are none. delays: nobody is
    refused.
    unlike: what the implementation does that the model does not. source: where the algorithm was read.
    """

    name: str
    meaning: str
    source: str
    decide: Callable[[Arrivals, Limit], np.ndarray]
    needs: tuple[str, ...]
    memory: Callable[[Limit], int]
    window: Callable[[Limit], int] = lambda _: 0
    has_level: bool = False
    counts_refused: bool = False
    delays: bool = False
    unlike: str = ""

    @property
    def window_by_clock(self) -> bool:
        return self.window(Limit(window_ns=SECOND)) > 0

    def lacks(self, limit: Limit) -> tuple[str, ...]:
        """What of ``needs`` is not known."""
        return tuple(need for need in self.needs if not getattr(limit, need) > 0)


def of_bucket(limit: Limit) -> int:
    """How long an empty bucket takes to fill, ns."""
    return round(limit.burst / limit.per_s * SECOND)


def of_window(limit: Limit) -> int:
    """Its length, ns."""
    return limit.window_ns
