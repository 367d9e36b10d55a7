"""A sliding window of slots, each with its time; a slot is cleared when it is used for another time."""

from __future__ import annotations

import numpy as np

from agent.limiters.models.model import Arrivals, Limit, Model


def slot_ns(limit: Limit) -> int:
    return max(limit.window_ns // limit.slots, 1)


def _decide(arrivals: Arrivals, limit: Limit) -> np.ndarray:
    """Every slot not older than the window counts, also slots ahead of the clock after a step back."""
    slots, count = limit.slots, limit.count
    out = bytearray(len(arrivals.t_ns))
    i = 0
    for times, costs in arrivals.runs(slot_ns(limit)):
        stamps, used = [-slots] * slots, [0.0] * slots
        now, total = times[0] if times else 0, 0.0
        latest, place = now, now % slots
        stamps[place] = now
        for at, n in zip(times, costs, strict=True):
            if at != now:
                oldest, place = at - slots, at % slots
                if now < latest or at < now:  # a slot ahead of the clock counts until it is reused
                    if stamps[place] != at:
                        stamps[place], used[place] = at, 0.0
                    total = sum(u for s, u in zip(stamps, used, strict=True) if s > oldest)
                elif oldest >= now:
                    total = 0.0
                    stamps[place], used[place] = at, 0.0
                else:
                    for old in range(now - slots + 1, oldest + 1):
                        if stamps[old % slots] == old:
                            total -= used[old % slots]
                    stamps[place], used[place] = at, 0.0
                now = at
                latest = max(latest, at)
            if total + n <= count:
                total += n
                used[place] += n
                out[i] = 1
            i += 1
    return np.frombuffer(out, np.bool_)


MODELS = (
    Model(
        "sliding window of slots",
        "counts admitted requests in a ring of slots; a slot is cleared when it is reused for another time, slots"
        " ahead of the clock count",
        "the usual hand-written ring, (*SlidingWindow).Inc: ten slots of 100 ms, lazily cleared",
        _decide,
        ("count", "window_ns"),
        lambda limit: limit.window_ns + slot_ns(limit),
        slot_ns,
    ),
)
