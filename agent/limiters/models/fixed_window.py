"""Fixed windows: a counter per window."""

from __future__ import annotations

import numpy as np

from agent.limiters.models.model import Arrivals, Limit, Model, of_window

_MANY = 64  # counters, of which one or two are alive


def _rank(keys: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """The running sum of costs, including each request, among those of equal keys, f64 (n,)."""
    order = np.argsort(keys, kind="stable")
    total = np.cumsum(cost[order])
    first = np.flatnonzero(np.append(True, np.diff(keys[order]) != 0))
    before = np.repeat(total[first] - cost[order][first], np.diff(np.append(first, len(keys))))
    out = np.empty(len(keys))
    out[order] = total - before
    return out


def _on_clock(arrivals: Arrivals, limit: Limit) -> np.ndarray:
    """A window that occurs again has its old count: the counter's name contains the window, and it lives for a window's
    length after its last use.
    """
    t, n = arrivals.t_ns, len(arrivals.t_ns)
    back = np.diff(t) < 0
    back[arrivals.starts[1:] - 1] = False
    if back.any():
        return _again(arrivals, limit)
    if not n:
        return np.zeros(0, np.bool_)
    window = t // limit.window_ns
    window -= window.min()
    keys = arrivals.group() * (int(window.max()) + 1) + window
    admitted: np.ndarray = _rank(keys, arrivals.cost) <= limit.count
    return admitted


def _again(arrivals: Arrivals, limit: Limit) -> np.ndarray:
    """The same if the clock goes back."""
    length, count, kept = limit.window_ns, limit.count, limit.kept_ns or limit.window_ns
    out = bytearray(len(arrivals.t_ns))
    i = 0
    for times, costs in arrivals.runs():
        used: dict[int, float] = {}
        last: dict[int, int] = {}
        before = times[0] if times else 0
        for now, n in zip(times, costs, strict=True):
            if now < before or len(used) > _MANY:
                used = {at: u for at, u in used.items() if last[at] + kept > before}
            before = now
            at = now // length
            used_now = used[at] = used.get(at, 0.0) + n
            last[at] = now
            out[i] = used_now <= count
            i += 1
    return np.frombuffer(out, np.bool_)


def _from_first(arrivals: Arrivals, limit: Limit) -> np.ndarray:
    length, count = limit.window_ns, limit.count
    out = bytearray(len(arrivals.t_ns))
    i = 0
    for times, costs in arrivals.runs():
        used, ends = 0.0, None
        for now, n in zip(times, costs, strict=True):
            if ends is None or ends <= now:
                used, ends = 0.0, now + length
            used += n
            out[i] = used <= count
            i += 1
    return np.frombuffer(out, np.bool_)


MODELS = (
    Model(
        "fixed window",
        "counts all requests, also refused ones, in windows that begin at multiples of their length on the clock; a"
        " window that a step repeats keeps its count",
        "base_limiter.go of github.com/envoyproxy/ratelimit, GenerateCacheKey, and fixed_cache_impl.go: INCRBY and"
        " EXPIRE of a key with the window's begin",
        _on_clock,
        ("count", "window_ns"),
        lambda limit: 2 * limit.window_ns,
        of_window,
        counts_refused=True,
        unlike="Envoy keeps a counter for a further random time, by default up to 300 s",
    ),
    Model(
        "fixed window, from its first request",
        "counts all requests, also refused ones, in windows that begin with the first request after the last one ended",
        "MemoryStorage.incr and FixedWindowRateLimiter.hit of Python's limits 5.8; MemoryStore.increment of"
        " express-rate-limit 8.7",
        _from_first,
        ("count", "window_ns"),
        of_window,
        counts_refused=True,
    ),
)
