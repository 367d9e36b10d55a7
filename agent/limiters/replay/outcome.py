"""The result of a replay: the same requests on two clocks, compared. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TwoClocks:
    """A limiter's decisions on the program's clock, and on one that was not moved. member: which of the limiters called
    at one place, if each has a state of its own.

    Counts are of decisions from ``from_ns`` to ``until_ns`` (CLOCK_BOOTTIME). over_admitted: admitted by the program's
    clock, refused by true time. wrongly_refused: the reverse. These and all other counts are None if unknown
    (``reason``). excess: the largest lead of admitted units over true time (below 0: deficit), between
    ``excess_from_ns`` and ``excess_to_ns``. _most: upper bounds, with quality bounded. windows_overlapped,
    windows_skipped: windows that occurred twice, or never; None for algorithms without windows on the clock.
    """

    limiter_id: str
    member: int | None
    library: str
    library_version: str
    pid: int | None
    comm: str
    algorithm: str
    clock: str
    jump_t_ns: int
    size_ns: int
    from_ns: int
    until_ns: int
    decisions: int
    quality: str
    reason: str
    admitted_program: int | None = None
    refused_program: int | None = None
    admitted_true: int | None = None
    refused_true: int | None = None
    over_admitted: int | None = None
    wrongly_refused: int | None = None
    over_admitted_most: int | None = None
    wrongly_refused_most: int | None = None
    excess: int | None = None
    excess_from_ns: int | None = None
    excess_to_ns: int | None = None
    windows_overlapped: int | None = None
    windows_skipped: int | None = None

    def as_row(self) -> dict[str, Any]:
        return asdict(self)


def compared(program: np.ndarray, true: np.ndarray, t_ns: np.ndarray) -> dict[str, int | None]:
    """The counts of an outcome. program, true: which requests were admitted, bool (n,), in order of t_ns
    (CLOCK_BOOTTIME).
    """
    over, wrong = program & ~true, true & ~program
    ahead = np.cumsum(over.astype(np.int64) - wrong)
    admitted, admitted_true, n = int(program.sum()), int(true.sum()), len(program)
    counts: dict[str, int | None] = {
        "admitted_program": admitted,
        "refused_program": n - admitted,
        "admitted_true": admitted_true,
        "refused_true": n - admitted_true,
        "over_admitted": int(over.sum()),
        "wrongly_refused": int(wrong.sum()),
        "excess": 0,
        "excess_from_ns": None,
        "excess_to_ns": None,
    }
    if n and ahead.any():
        end = int(np.argmax(np.abs(ahead)))
        # From the last time before it at which both were equal.
        even = np.flatnonzero(ahead[:end] == 0)
        begin = int(even[-1]) + 1 if len(even) else 0
        begin += int(np.flatnonzero((over | wrong)[begin:])[0])
        counts |= {"excess": int(ahead[end]), "excess_from_ns": int(t_ns[begin]), "excess_to_ns": int(t_ns[end])}
    return counts


def windows(length_ns: int, before_ns: int, size_ns: int) -> tuple[int | None, int | None]:
    """(number of windows that occurred twice, that never occurred), entirely or in part, for a clock at ``before_ns``
    that moved by ``size_ns``.
    """
    if not length_ns:
        return None, None
    before, after = before_ns // length_ns, (before_ns + size_ns) // length_ns
    return (int(before - after) + 1, 0) if size_ns < 0 else (0, max(int(after - before) - 1, 0))
