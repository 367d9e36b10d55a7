"""The model of a limiter: from the times that a limiter read, its decisions. Pure; reads no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

SECOND = 1_000_000_000


@dataclass(frozen=True)
class Limit:
    """A limiter's parameters. 0 means unknown, or unused by its algorithm.

    per_s: units per second. burst: most units at once (of a bucket: its size). count: units per window. window_ns: its
    length. slots: pieces of it. kept_ns: how long a window's counter lives after its last use; 0: as long as the
    window. patient: callers wait instead of being refused, and take their units. start: units in a bucket at the first
    decision; None: full.
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
    """Requests in the order of a limiter's decisions, one limiter (or key of one) after the other.

    t_ns: the limiter's clock, i64 (n,); it may go back. cost: requested units, f64 (n,). starts: index of each
    limiter's first request, i64 (k,), the first is 0.
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
    """One algorithm, as implemented by a library.

    decide: which requests were admitted at once, bool (n,). needs: which of its parameters must be known. memory: after
    how many ns a past request has no effect (a bucket: until it is full). has_level: a bucket, which uses
    ``Limit.start``. counts_refused: refused requests change its state, too. window: the length of windows that lie at
    multiples of it on the clock, 0 if there are none. delays: requests are delayed, never refused. unlike: where the
    implementation differs from the model. source: where the algorithm was read.
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
        """The members of ``needs`` that are unknown."""
        return tuple(need for need in self.needs if not getattr(limit, need) > 0)


def of_bucket(limit: Limit) -> int:
    """Time to fill an empty bucket, ns."""
    return round(limit.burst / limit.per_s * SECOND)


def of_window(limit: Limit) -> int:
    """Length of the window, ns."""
    return limit.window_ns
