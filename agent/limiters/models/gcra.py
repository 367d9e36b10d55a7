"""The generic cell rate algorithm: a theoretical arrival time per key."""

from __future__ import annotations

import numpy as np

from agent.limiters.models.model import SECOND, Arrivals, Limit, Model, of_bucket

#: redis_rate's doubles count from 2017 on.
_EPOCH_S = 1_483_228_800


def _integers(arrivals: Arrivals, limit: Limit) -> np.ndarray:
    interval = int(SECOND / limit.per_s)
    tolerance = interval * int(limit.burst)
    out = bytearray(len(arrivals.t_ns))
    i = 0
    for times, costs in arrivals.runs():
        due = times[0] if times else 0
        if limit.start is not None:
            due += tolerance - int(limit.start * interval)
        for now, n in zip(times, costs, strict=True):
            after = (max(due, now)) + int(n) * interval
            if after - tolerance <= now:
                due = after
                out[i] = 1
            i += 1
    return np.frombuffer(out, np.bool_)


def _doubles(arrivals: Arrivals, limit: Limit) -> np.ndarray:
    """In doubles, as Lua, with Redis's TIME in microseconds; limit_per_s is rate / period."""
    interval = 1.0 / limit.per_s
    tolerance = interval * limit.burst
    out = bytearray(len(arrivals.t_ns))
    i = 0
    for times, costs in arrivals.runs(1000):
        due = None
        if limit.start is not None and times:
            due = (
                times[0] // 1_000_000
                - _EPOCH_S
                + (times[0] % 1_000_000) / 1_000_000
                + tolerance
                - limit.start * interval
            )
        for us, n in zip(times, costs, strict=True):
            now = (us // 1_000_000 - _EPOCH_S) + (us % 1_000_000) / 1_000_000
            after = (now if due is None or due < now else due) + interval * n
            if (now - (after - tolerance)) / interval >= 0:
                due = after
                out[i] = 1
            i += 1
    return np.frombuffer(out, np.bool_)


_MEANING = (
    "each request moves the time at which the next is due by one interval; a request earlier than that, less the"
    " burst, is refused"
)
MODELS = (
    Model(
        "GCRA",
        _MEANING,
        "rate.go of github.com/throttled/throttled/v2 v2.13.0, RateLimitCtx",
        _integers,
        ("per_s", "burst"),
        of_bucket,
        has_level=True,
    ),
    Model(
        "GCRA, redis_rate",
        f"{_MEANING}; in floating point, by Redis's TIME",
        "lua.go of github.com/go-redis/redis_rate/v10 v10.0.1, allowN",
        _doubles,
        ("per_s", "burst"),
        of_bucket,
        has_level=True,
        unlike="AllowAtMost admits a part of the requested units",
    ),
)
