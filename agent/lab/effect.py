"""Whether a fault had an impact, decided from the workload's own log. Pure.

The baseline is what a program's operations did in the quiet times of the same session. The operations counted are those
that overlap the fault or begin within ``AFTER_NS`` of its end (the backlog). A program is impacted if they were
- ``slow``: those beyond three times the baseline's 95th percentile, and 20 ms above its median, lost 100 ms in all
  (two of them, or one 200 ms), and five times what such operations lose in a baseline of equal length;
- ``failed``: two or more failed, and ten points more than in the baseline;
- ``refused``: five or more were refused, and twenty points more than in the baseline;
- ``missing``: fewer than 30 % of eight or more operations that were due in that time were done.
Only operations of clients count: what a server did (``serve``) shows in those. A fault without impact does not count,
and naming it is neither right nor wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from agent.lab.oplog import Ops
from agent.lab.truth import Truth, quiet

AFTER_NS = 500_000_000
LEAST_QUIET = 20
SLOW_RATIO, SLOW_NS, LOST_NS, ONE_NS, LOST_RATIO = 3.0, 20_000_000, 100_000_000, 200_000_000, 5.0
FAILED, FAILED_POINTS = 2, 0.10
REFUSED, REFUSED_POINTS = 5, 0.20
EXPECTED, DONE = 8.0, 0.30
#: A server's own operations; their clients show whether these were late.
SERVED = "serve"

IMPACT_KINDS = ("slow", "failed", "refused", "missing")

Interval = tuple[int, int]


@dataclass(frozen=True)
class Impact:
    """One impacted operation of a program. usual, worst: durations in ns; for ``failed`` and ``refused`` shares; for
    ``missing`` operations expected and done. since, until: CLOCK_BOOTTIME.
    """

    program: str
    op: str
    how: str
    usual: float
    worst: float
    count: int
    since_ns: int
    until_ns: int

    @property
    def ratio(self) -> float:
        """How much worse than usual."""
        if self.how == "missing":
            return self.usual / max(self.worst, 1.0)
        return self.worst / max(self.usual, 0.01)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": round(self.ratio, 1)}


def measured(truth: Truth, ops: Mapping[tuple[str, str], Ops]) -> Truth:
    """The truth with the impact of each fault on the programs in its reach, limited to the kinds in its ``impacts``."""
    times = [(fault.start_ns, fault.end_ns) for fault in truth.faults]
    free = quiet(truth.from_ns, truth.until_ns, times)
    effects = [
        [
            f.to_json()
            for f in impacts(ops, time, free)
            if f.program in fault.reach and f.how in (fault.impacts or IMPACT_KINDS)
        ]
        for fault, time in zip(truth.faults, times, strict=True)
    ]
    return replace(
        truth, faults=[replace(fault, effect=effect) for fault, effect in zip(truth.faults, effects, strict=True)]
    )


def impacts(ops: Mapping[tuple[str, str], Ops], fault: Interval, free: Sequence[Interval]) -> list[Impact]:
    """All impacts of a fault. free: the quiet times of the session."""
    return [
        f for (program, op), of in sorted(ops.items()) if op != SERVED for f in _impacts(program, op, of, fault, free)
    ]


def _impacts(program: str, op: str, ops: Ops, fault: Interval, free: Sequence[Interval]) -> list[Impact]:
    start, end = ops.rows["start_ns"], ops.end_ns
    usual = np.zeros(len(start), np.bool_)
    for begin, stop in free:
        usual |= (start >= begin) & (end <= stop)
    if np.count_nonzero(usual) < LEAST_QUIET:
        return []
    now = (start <= fault[1] + AFTER_NS) & (end >= fault[0])
    good, refused = ops.is_("ok"), ops.is_("refused")
    failed = ~good & ~refused
    found = []

    def add(how: str, mask: np.ndarray, base: float, worst: float) -> None:
        found.append(
            Impact(
                program,
                op,
                how,
                round(base, 4),
                round(worst, 4),
                int(np.count_nonzero(mask)),
                int(max(fault[0], start[mask].min())),
                int(end[mask].max()),
            )
        )

    span = sum(stop - begin for begin, stop in free)
    ns = ops.rows["duration_ns"]
    base = ns[usual & good]
    if len(base):
        median, high = (float(q) for q in np.quantile(base, (0.5, 0.95)))
        beyond = ~refused & (ns > max(SLOW_RATIO * high, median + SLOW_NS))
        slow = now & beyond
        lost = ns[slow] - median
        usually = float((ns[usual & beyond] - median).sum()) / span * (fault[1] + AFTER_NS - fault[0])
        if lost.sum() >= max(LOST_NS, LOST_RATIO * usually) and (len(lost) >= 2 or lost.max() >= ONE_NS):
            add("slow", slow, median, float(ns[slow].max()))
    for how, mask, least, points in (
        ("failed", failed, FAILED, FAILED_POINTS),
        ("refused", refused, REFUSED, REFUSED_POINTS),
    ):
        before, share = float(np.mean(mask[usual])), float(np.mean(mask[now])) if now.any() else 0.0
        if np.count_nonzero(mask & now) >= least and share >= before + points:
            add(how, mask & now, before, share)
    expected = float(np.count_nonzero(usual) / span * (fault[1] - fault[0]))
    done = int(np.count_nonzero((end >= fault[0]) & (end <= fault[1])))
    if expected >= EXPECTED and done < DONE * expected:
        found.append(Impact(program, op, "missing", round(expected, 1), float(done), done, fault[0], fault[1]))
    return found
