"""Sliding logs: the times of the admitted requests within the window."""

from __future__ import annotations

from bisect import bisect_right, insort

import numpy as np

from agent.limiters.models.model import Arrivals, Limit, Model, of_window

_MS = 1_000_000
_COMPACT = 4096


def _sorted(arrivals: Arrivals, limit: Limit) -> np.ndarray:
    """A Redis sorted set: entries older than the window are removed for good, and entries ahead count."""
    length, count = limit.window_ns // _MS, limit.count
    out = bytearray(len(arrivals.t_ns))
    i = 0
    for times, costs in arrivals.runs(_MS):
        log: list[int] = []
        head = 0
        for now, n in zip(times, costs, strict=True):
            if head < len(log) and log[head] <= now - length:
                head = bisect_right(log, now - length, head)
                if head > _COMPACT:
                    del log[:head]
                    head = 0
            if len(log) - head + n <= count:
                if not log or now >= log[-1]:
                    log.extend([now] * int(n))
                else:
                    for _ in range(int(n)):
                        insort(log, now, head)
                out[i] = 1
            i += 1
    return np.frombuffer(out, np.bool_)


def _in_order(arrivals: Arrivals, limit: Limit) -> np.ndarray:
    """The n-th last admitted request, n the limit, must be older than the window."""
    length, count = limit.window_ns, int(limit.count)
    out = bytearray(len(arrivals.t_ns))
    i = 0
    for times, costs in arrivals.runs():
        log: list[int] = []
        for now, cost in zip(times, costs, strict=True):
            n = int(cost)
            back = count - n + 1
            if back > 0 and (len(log) < back or log[-back] < now - length):
                if n == 1:
                    log.append(now)
                else:
                    log.extend([now] * n)
                out[i] = 1
            i += 1
    return np.frombuffer(out, np.bool_)


MODELS = (
    Model(
        "sliding log",
        "keeps the times of admitted requests, sorted, in milliseconds; times older than the window are removed for"
        " good, times ahead of the clock count",
        "the usual Redis script: ZREMRANGEBYSCORE, ZCARD, ZADD",
        _sorted,
        ("count", "window_ns"),
        of_window,
        unlike="a key's expiry by Redis's own clock",
    ),
    Model(
        "sliding log, in order",
        "keeps the times of admitted requests in order of arrival; with a limit of N, the N-th last must be older than"
        " the window",
        "MemoryStorage.acquire_entry of Python's limits 5.8",
        _in_order,
        ("count", "window_ns"),
        of_window,
        unlike=(
            "a thread of the library removes old entries from time to time: after a step forward and back it may"
            " admit more"
        ),
    ),
)
