"""How far a count may be off that was taken in windows, for the time between them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt


def off(counts: Sequence[int], watched_ns: Sequence[int], between_ns: float) -> tuple[float, float]:
    """By how much too high and too low the sum over the time between windows may be, 95 times in 100: by how much
    neighbours among the windows differ, and by chance at least.

    counts, watched_ns: of each window. between_ns: the root of the sum of squares of what lies between them. Few
    windows say little of how they differ (Student's t), and where some have much more than the others, more of these
    may have been missed.
    """
    n = len(counts)
    per_ns = [count / max(ns, 1) for count, ns in zip(counts, watched_ns, strict=True)]
    mean = sum(per_ns) / n
    chance = (sum(counts) + 1) / n / (sum(watched_ns) / n or 1) ** 2
    differ = sum((a - b) ** 2 for a, b in pairwise(per_ns)) / 2 / (n - 1) if n > 1 else 0.0
    wide = _t(n) * sqrt(max(differ, chance)) * between_ns
    second, third = (sum((one - mean) ** power for one in per_ns) / n for power in (2, 3))
    skew = max(0.0, third / second**1.5) if second else 0.0
    return wide, wide * (1 + 2 * skew / sqrt(n))


def _t(n: int) -> float:
    """The t distribution's 95 %, of both sides, for as many degrees of freedom as differences of neighbours among n
    have.
    """
    free = max(1.0, 2 * (n - 1) / 3)
    return 1.96 + 2.4 / free + 2.5 / free**2 + 6 / free**3
