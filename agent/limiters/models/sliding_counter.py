"""A sliding window of two counters: this window's count, and a share of the previous one's."""

from __future__ import annotations

from math import floor

import numpy as np

from agent.limiters.models.model import SECOND, Arrivals, Limit, Model, of_window


def _decide(arrivals: Arrivals, limit: Limit) -> np.ndarray:
    """In doubles of seconds, in the library's order of operations. A counter expires two windows after its first
    request.
    """
    length = limit.window_ns / SECOND
    count = limit.count
    out = bytearray(len(arrivals.t_ns))
    i = 0
    for times, costs in arrivals.runs():
        used: dict[int, float] = {}
        ends: dict[int, float] = {}
        window, before, current = None, 0.0, 0.0
        for t, n in zip(times, costs, strict=True):
            now = t / SECOND
            at = int(now / length)
            if at != window:
                window, before, current = at, used.get(at - 1, 0.0), used.get(at, 0.0)
            if before and ends[at - 1] <= now:
                del used[at - 1], ends[at - 1]
                before = 0.0
            if current and ends[at] <= now:
                del used[at], ends[at]
                current = 0.0
            held = current
            if before:
                held += before * ((1 - (((now - length) / length) % 1)) * length) / length
            if n <= count and floor(held) + n <= count:
                if not current:
                    ends[at] = now + 2 * length
                    if len(used) > 1024:  # long expired, or far ahead
                        used = {w: u for w, u in used.items() if ends[w] > now}
                current += n
                used[at] = current
                out[i] = 1
            i += 1
    return np.frombuffer(out, np.bool_)


MODELS = (
    Model(
        "sliding window of two counters",
        "counts admitted requests in windows on the clock, plus the share of the previous window that is less than one"
        " window's length ago",
        "MemoryStorage.acquire_sliding_window_entry of Python's limits 5.8",
        _decide,
        ("count", "window_ns"),
        lambda limit: 3 * limit.window_ns,
        of_window,
    ),
)
