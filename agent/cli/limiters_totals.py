"""Total decisions of limiters, including sampled programs: adds up rows of ``limiter_rate`` with their
intervals. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

KEY = ("boot_id", "limiter_id", "pid", "proc_start_ns")
COLUMNS = (*KEY, *(f"{name}{end}" for name in ("allowed", "refused") for end in ("", "_low", "_high")))


@dataclass(frozen=True)
class Total:
    """A count and its 95 % interval. most: None if n is a lower bound, because the probes slowed the program down."""

    n: int = 0
    least: int = 0
    most: int | None = 0

    def __add__(self, other: Total) -> Total:
        most = None if self.most is None or other.most is None else self.most + other.most
        return Total(self.n + other.n, self.least + other.least, most)


def added(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[Any, ...], tuple[Total, Total]]:
    """(admitted, not admitted) by ``KEY``. rows: with ``COLUMNS``."""
    sums: dict[tuple[Any, ...], tuple[Total, Total]] = {}
    for row in rows:
        key = tuple(row[name] for name in KEY)
        allowed, refused = sums.get(key, (Total(), Total()))
        sums[key] = (
            allowed + Total(row["allowed"], row["allowed_low"], row["allowed_high"]),
            refused + Total(row["refused"], row["refused_low"], row["refused_high"]),
        )
    return sums


def basis(allowed: Total, refused: Total) -> str:
    """The accuracy of a total, as a word or a percentage."""
    both = allowed + refused
    if both.most is None:
        return "at least"
    off = max(both.most - both.n, both.n - both.least) / both.n if both.n else 0.0
    return f"within {100 * off:.2g} %" if 0 < off < 0.995 else f"within {100 * off:,.0f} %" if off else "exact"
