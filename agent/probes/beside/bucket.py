"""What a token bucket let through, by looks at it. Pure.

Between two looks that is limit * elapsed - change of its rest, but for what the bucket did not take in while it was
full, and what it was given twice: a caller may have read the time long before it got the bucket's lock, and sets its
clock back then. All that is taken is whole, and what was lost or given twice is not: where the figure between two looks
is whole, it is what was let through. Else it lies between bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np

#: A look: units a second, units left, as of when by the program's own clock; when it was taken; how many it holds; for
#: how long, so far, no thread of the program ran.
LOOK = np.dtype(
    [("limit", "<f8"), ("rest", "<f8"), ("last_ns", "<i8"), ("t_ns", "<i8"), ("burst", "<f8"), ("off_ns", "<i8")]
)
#: What rounding may leave of a whole number, in units; and the limit a second above which any number seems whole.
WHOLE, FINEST = 0.0005, 2e6
#: As good as unbounded.
ANY = 1 << 62
#: The same where looks are few and were taken without the lock.
ROUGH = 0.01
#: How far its own time may be from ours, beside what two units take to come.
_STRANGE_NS, _REFILL = 200_000_000, 2_000_000_000
#: How old a time may be that a caller comes with, once it has the lock: mostly, and at most, in s. Measured with 4 to
#: 50 callers on 2 busy processors.
_OLD_S, _OLDEST_S = 0.025, 0.15


@dataclass(frozen=True)
class Units:
    """Taken: about n, least to most 95 times in 100. exact: it is known that these are all."""

    n: float = 0.0
    least: float = 0.0
    most: float = 0.0
    exact: bool = True

    def decisions(self, cost: float, told: int) -> Units:
        """Of so many units each, without those that are told already."""
        n, least, most = (max(0.0, units / cost - told) for units in (self.n, self.least, self.most))
        return Units(n, least, most, self.exact)

    def __add__(self, other: Units) -> Units:
        return Units(self.n + other.n, self.least + other.least, self.most + other.most, self.exact and other.exact)


def certain(n: float) -> Units:
    return Units(n, n, n)


def taken(at: np.ndarray, since: np.ndarray) -> np.ndarray:
    """Units that were taken from a bucket since another look at it, had it never been full meanwhile; a NaN where its
    limit, or the clock that it goes by, is another by now.
    """
    ns = at["last_ns"] - since["last_ns"]
    with np.errstate(divide="ignore", invalid="ignore"):
        strange = np.abs(ns - (at["t_ns"] - since["t_ns"])) > _STRANGE_NS + _REFILL / since["limit"]
        units = since["rest"] - at["rest"] + since["limit"] * (ns / 1e9)
    return np.where(strange | (at["limit"] != since["limit"]), np.nan, units)


def agreed(at: np.ndarray) -> int:
    """The last of the looks at a bucket, taken without its lock, that most agree with: other goroutines may have been
    at it while one was taken.
    """
    units = taken(at, at[0])
    apart = np.abs((units[:, None] - units[None, :] + 0.5) % 1.0 - 0.5) < ROUGH
    votes = apart.sum(1)
    return int(np.flatnonzero(votes == votes.max())[-1])


def figures(looks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each look and the next: units as ``taken``, whether these are certain, and whether it may have been full
    meanwhile.
    """
    a, b = looks[:-1], looks[1:]
    dt_s = (b["last_ns"] - a["last_ns"]) / 1e9
    plain, before = taken(b, a), a["rest"] - b["rest"] + a["limit"] * dt_s
    turned = (
        a["limit"] != b["limit"]
    )  # if nothing was taken since the limit was set, its rest is as of then, by the limit before
    full = b["rest"] >= b["burst"]  # as only a limit that is set leaves it
    at_rest = full & (before >= 0) & (turned | (a["rest"] >= a["burst"]))
    units = np.where(at_rest, 0.0, np.where(turned, before, plain))
    whole = (np.abs(units - np.round(units)) < WHOLE) & (units > -WHOLE)
    fills = a["rest"] + a["limit"] * dt_s > a["burst"] - WHOLE
    certain_of = at_rest | (whole & (~fills | (a["limit"] <= FINEST)))
    return np.where(turned & ~certain_of, np.nan, units), certain_of, fills


def forwards(looks: np.ndarray) -> np.ndarray:
    """Without those at which its clock was back, which it is but for a moment; all of them where it was set back for
    good.
    """
    ahead = looks["last_ns"] >= np.maximum.accumulate(looks["last_ns"])
    return looks[ahead] if 2 * np.count_nonzero(ahead) > len(looks) else looks


def between(looks: np.ndarray, callers: int, busy: bool) -> Units:
    """What was taken from the first look to the last. callers: goroutines that ask, at least; busy: they ask all of the
    time that they run.
    """
    units, exact, fills = figures(looks)
    known, odd = certain(float(np.round(units[exact]).sum())), ~exact
    return (
        known + _apart(looks[:-1][odd], looks[1:][odd], units[odd], fills[odd], callers, busy) if odd.any() else known
    )


def _apart(a: np.ndarray, b: np.ndarray, units: np.ndarray, fills: np.ndarray, callers: int, busy: bool) -> Units:
    """Of pairs of looks between which the figure is not whole."""
    changed = np.isnan(units)
    limit = np.maximum(a["limit"], b["limit"])
    most = np.where(changed, a["rest"] - b["rest"] + limit * np.maximum(b["t_ns"] - a["t_ns"], 0) / 1e9 + 1, units)
    # what was left of it cannot have been taken before it was full
    least = np.where(changed, a["rest"] - b["rest"], np.where(fills, b["burst"] - b["rest"], np.ceil(units - WHOLE)))
    least, most = np.maximum(least, 0), np.maximum(most, 0)
    least = np.minimum(least, most)
    plain = a["rest"] - b["rest"] + a["limit"] * ((b["last_ns"] - a["last_ns"]) / 1e9)
    n = np.where(changed & (a["limit"] == b["limit"]), np.clip(plain, least, most), (least + most) / 2)
    if busy:  # it is full only while nobody runs
        off = a["limit"] * np.maximum(b["off_ns"] - a["off_ns"], 0) / 1e9
        spilt = np.maximum(0.0, off - (a["burst"] - np.maximum(a["rest"], 0)))
        n = np.where(fills & ~changed, np.clip(units - spilt, least, most), n)
    n = np.where(fills | changed, n, np.maximum(units, 0))
    sums = Units(float(n.sum()), float(least.sum()), float(most.sum()), exact=False)
    forth = changed | (units >= 0)  # else its clock is back still, and all that it is given twice is to come
    return sums + _twice(a[forth], fills[forth]) if callers > 1 and forth.any() else sums


def _twice(a: np.ndarray, fills: np.ndarray) -> Units:
    """What the bucket was given twice: never more at once than it holds."""
    mean = np.where(fills, 0.0, np.minimum(a["burst"] / 2, a["limit"] * _OLD_S))
    top = np.minimum(a["burst"], a["limit"] * _OLDEST_S)
    n = float(mean.sum())
    return Units(n, 0.0, min(float(top.sum()), 2 * n + 2 * sqrt(len(a)) * float(top.max())), exact=False)


def most(look: np.void, interval_ns: int) -> int:
    """What its bucket can have let through in the time before a look at it."""
    rest, limit, burst = (float(look[name]) for name in ("rest", "limit", "burst"))
    return ceil(min(max(0.0, burst - rest + limit * interval_ns / 1e9), ANY))


def left(look: np.ndarray, until_ns: int) -> int:
    """What its bucket can have let through since a look at it, of one."""
    rest, limit, looked_ns = (float(look[name]) for name in ("rest", "limit", "t_ns"))
    return ceil(min(max(0.0, rest + limit * (until_ns - looked_ns) / 1e9), ANY))
