"""Leaky buckets: a meter that refuses requests, and a queue that releases one request per interval."""

from __future__ import annotations

import numpy as np

from agent.limiters.models.model import SECOND, Arrivals, Limit, Model, of_bucket

_MS = 1_000_000
_LONG_BACK_MS = 60_000


def _meter(arrivals: Arrivals, limit: Limit) -> np.ndarray:
    """In thousandths of a request and whole milliseconds, as nginx; a request costs 1."""
    rate, most = int(limit.per_s * 1000), int(limit.burst * 1000)
    out = bytearray(len(arrivals.t_ns))
    i = 0
    for times, _ in arrivals.runs(_MS):
        excess, last = 0, None
        for now in times:
            if last is None and limit.start is not None:
                excess, last = int((limit.burst - limit.start) * 1000), now
            if last is None:
                excess, last = 0, now
                out[i] = 1
            else:
                since = now - last
                if since < 0:
                    since = 1 if since < -_LONG_BACK_MS else 0
                held = excess - rate * since // 1000 + 1000
                held = max(held, 0)
                if held <= most:
                    excess = held
                    if since:
                        last = now
                    out[i] = 1
            i += 1
    return np.frombuffer(out, np.bool_)


def _queue(arrivals: Arrivals, limit: Limit) -> np.ndarray:
    """burst: requests admitted at once after a pause (slack + 1). None is refused: admitted means without a wait."""
    interval = int(SECOND / limit.per_s)
    slack = max(int(limit.burst) - 1, 0) * interval
    out = bytearray(len(arrivals.t_ns))
    i = 0
    for times, _ in arrivals.runs():
        due = 0
        for now in times:
            if due == 0 or (slack == 0 and now - due > interval):
                due = now
            elif slack > 0 and now - due > slack + interval:
                due = now - slack
            else:
                due += interval
            out[i] = due <= now
            i += 1
    return np.frombuffer(out, np.bool_)


MODELS = (
    Model(
        "leaky bucket",
        "leaks at the rate; a request that would fill it above the burst is refused",
        "ngx_http_limit_req_module.c of nginx 1.26, ngx_http_limit_req_lookup",
        _meter,
        ("per_s",),
        lambda limit: of_bucket(Limit(limit.per_s, limit.burst + 1)),
        has_level=True,
        unlike="requests that nginx delays within the burst count as admitted; a request costs 1",
    ),
    Model(
        "leaky bucket, waits",
        "admits one request per interval, after a pause as many more as its slack; an earlier request waits, none is"
        " refused",
        "limiter_atomic_int64.go of go.uber.org/ratelimit v0.3.1, Take",
        _queue,
        ("per_s",),
        lambda limit: of_bucket(Limit(limit.per_s, max(limit.burst, 1))),
        delays=True,
    ),
)
