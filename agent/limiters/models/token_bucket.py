"""Token buckets. The arithmetic is that of x/time/rate, in the same order, so that the same times give the same
decisions to the last bit.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from agent.limiters.models.model import SECOND, Arrivals, Limit, Model, of_bucket


def _decide(arrivals: Arrivals, limit: Limit, keeps_last: bool) -> np.ndarray:
    """keeps_last: a refused request leaves the last time unchanged (from v0.3.0 on), even if the clock went back;
    before, it moved it back.
    """
    rate, burst = float(limit.per_s), float(limit.burst)
    begin = burst if limit.start is None else float(limit.start)
    patient = limit.patient
    out = bytearray(len(arrivals.t_ns))
    i = 0
    for times, costs in arrivals.runs():
        tokens, last = begin, times[0] if times else 0
        for now, n in zip(times, costs, strict=True):
            since = now - last
            if since < 0:
                left, back = tokens, True
            else:  # Duration.Seconds() adds whole seconds and the rest
                back = False
                whole = since // SECOND
                left = tokens + (whole + (since - whole * SECOND) / 1e9) * rate
            if left > burst:  # noqa: PLR1730 - min() takes as long as all the rest
                left = burst
            left -= n
            # durationFromTokens cuts to whole nanoseconds: a smaller debt is 0.
            ready = left >= 0 or int(1e9 * (-left / rate)) <= 0
            if n <= burst and (ready or patient):
                tokens, last = left, now
                out[i] = ready
            elif back and not keeps_last:
                last = now
            i += 1
    return np.frombuffer(out, np.bool_)


_SOURCE = "rate.go of golang.org/x/time, reserveN and advance"
MODELS = (
    Model(
        "token bucket",
        "fills at the rate up to its size; a request that finds too few tokens is refused. A refusal does not change"
        " its time: after a step back it does not fill until the clock has caught up",
        f"{_SOURCE}, v0.3.0 to v0.16.0",
        partial(_decide, keeps_last=True),
        ("per_s", "burst"),
        of_bucket,
        has_level=True,
    ),
    Model(
        "token bucket, first generation",
        "the same, but a refusal after a step back also moves its time back: it fills again at once",
        f"{_SOURCE}, up to v0.2.0",
        partial(_decide, keeps_last=False),
        ("per_s", "burst"),
        of_bucket,
        has_level=True,
    ),
)
