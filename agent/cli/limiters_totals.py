"""What limiters decided in all, of those too that were watched a part of the time only: rows of ``limiter_rate`` added
up, with how far they may be off. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, floor, sqrt
from typing import Any

from agent.common.spread import off

Row = Mapping[str, Any]
KEY = ("boot_id", "limiter_id", "pid", "proc_start_ns")
COLUMNS = (
    *KEY,
    "t_ns",
    "interval_ns",
    "watched_ns",
    "seen_allowed",
    "seen_refused",
    "allowed",
    "allowed_low",
    "allowed_high",
    "refused",
    "refused_low",
    "refused_high",
    "basis",
    "pace",
)


@dataclass(frozen=True)
class Total:
    """most: None where the probes set the pace, so that it is at least n."""

    n: int = 0
    least: int = 0
    most: int | None = 0

    def __add__(self, other: Total) -> Total:
        most = None if self.most is None or other.most is None else self.most + other.most
        return Total(self.n + other.n, self.least + other.least, most)


def added(rows: Iterable[Row]) -> dict[tuple[Any, ...], tuple[Total, Total]]:
    """Let through and not, by ``KEY``. rows: with ``COLUMNS``, by time."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in KEY), []).append(row)
    return {key: (_sum(mine, "allowed"), _sum(mine, "refused")) for key, mine in groups.items()}


def _sum(rows: list[Row], name: str) -> Total:
    """What is exact adds up; what windows say differs from one to the next, by which it is known how far their sum may
    be off; the program's pace is off alike in all of them.
    """
    # Of one that began within its first interval nobody knows since when it decides: no window stands for that.
    begun = sum(row[f"{name}_low"] <= row[f"seen_{name}"] for row in rows[:1])
    alike, total = [row for row in rows[begun:] if _windowed(row, name)], Total()
    for row in [*rows[:begun], *(row for row in rows[begun:] if not _windowed(row, name))]:
        total += Total(row[name], row[f"{name}_low"], row[f"{name}_high"])
    if not alike:
        return total
    seen = [row[f"seen_{name}"] for row in alike]
    between = [row["interval_ns"] - row["watched_ns"] for row in alike]
    high, low = off(seen, [row["watched_ns"] for row in alike], sqrt(sum(ns * ns for ns in between)))
    most, n = None, sum(row[name] for row in alike)
    if all(row[f"{name}_high"] is not None and row["pace"] is not None for row in alike):
        most = ceil(
            sum(seen) + sum((row[name] - one) * row["pace"] for row, one in zip(alike, seen, strict=True)) + low
        )
    return total + Total(n, max(sum(seen), floor(n - high)), most)


def _windowed(row: Row, name: str) -> bool:
    """Whether a window stands for the time before it; else the row's own bounds are all there is."""
    if name == "allowed" and (row["basis"] != "windows" or (row["pace"] is None and row["allowed_high"] is not None)):
        return False
    return bool(row["watched_ns"] and (row["seen_allowed"] or row["seen_refused"]))


def told(allowed: Total, refused: Total) -> str:
    """How good a total is, in a word or a number."""
    both = allowed + refused
    if both.most is None:
        return "at least"
    off = max(both.most - both.n, both.n - both.least) / both.n if both.n else 0.0
    return f"within {100 * off:.2g} %" if 0 < off < 0.995 else f"within {100 * off:,.0f} %" if off else "exact"
