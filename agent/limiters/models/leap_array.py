"""Sentinel's leap array: a ring of buckets; a metric reads the last ones."""

from __future__ import annotations

import numpy as np

from agent.limiters.models.model import SECOND, Arrivals, Limit, Model

_MS = 1_000_000
_KEPT_NS = 10 * SECOND  # a resource's statistics, by default 20 buckets of 500 ms, of which the last two are read


def bucket_ns(limit: Limit) -> int:
    return max(limit.window_ns // limit.slots, _MS)


def _decide(arrivals: Arrivals, limit: Limit) -> np.ndarray:
    """If the clock is behind a bucket, its request is not counted (an error). Buckets ahead are not read: their
    unsigned age is huge. So after a step back by less than the ring the used buckets are found again; a longer step
    admits everything.
    """
    bucket, read, count = bucket_ns(limit) // _MS, limit.slots, limit.count
    kept = max(_KEPT_NS, limit.window_ns) // bucket_ns(limit)
    out = bytearray(len(arrivals.t_ns))
    i = 0
    for times, costs in arrivals.runs(_MS * bucket):
        first = times[0] if times else 0
        begins = first - first % kept
        # Buckets are created at the start.
        stamps, used = [*range(begins + kept, first + kept), *range(first, begins + kept)], [0.0] * kept
        now, total, place, behind = None, 0.0, 0, False
        for at, n in zip(times, costs, strict=True):
            if at != now:
                now, place = at, at % kept
                behind = at < stamps[place]
                total = used[place] if stamps[place] == at else 0.0
                for before in range(at - read + 1, at):
                    if stamps[before % kept] == before:
                        total += used[before % kept]
            if total + n <= count:
                if not behind:
                    if stamps[place] != at:
                        stamps[place], used[place] = at, 0.0
                    used[place] += n
                    total += n
                out[i] = 1
            i += 1
    return np.frombuffer(out, np.bool_)


MODELS = (
    Model(
        "leap array",
        "counts admitted requests in a ring of buckets, and reads the last ones. A bucket ahead of the clock is neither"
        " read nor written: a step back by more than the ring admits everything",
        "leap_array.go, sliding_window_metric.go and tc_default.go of github.com/alibaba/sentinel-golang v1.0.4",
        _decide,
        ("count", "window_ns"),
        lambda limit: max(_KEPT_NS, limit.window_ns) + bucket_ns(limit),
        bucket_ns,
    ),
)
