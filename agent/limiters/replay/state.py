"""The state of a limiter when the rows begin: as reported, or found as what fits its decisions. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from agent.limiters.models.model import Arrivals, Limit, Model

_HALVINGS = 24
#: Decisions that determine a bucket's level, and how many of them are before the jump.
_MOST, _BEFORE = 2048, 1024


def levels(model: Model, arrivals: Arrivals, limit: Limit, recorded: np.ndarray) -> tuple[float, float]:
    """The smallest and largest level at the first request with which a bucket decides as recorded, for one limiter;
    twice the same if there is none.

    From a level that is too high, the first difference is an admitted request that was refused; from one too low, the
    reverse.
    """
    short = Arrivals(arrivals.t_ns[:_MOST], arrivals.cost[:_MOST], arrivals.starts[:1])
    recorded = recorded[:_MOST]

    def side(level: float) -> int:
        wrong = np.flatnonzero(model.decide(short, replace(limit, start=level)) != recorded)
        return 0 if not len(wrong) else -1 if recorded[wrong[0]] else 1

    low, high = 0.0, float(limit.burst)
    fits = next((level for level in (high, low) if side(level) == 0), None)
    bottom, top = low, high
    for _ in range(_HALVINGS if fits is None else 0):
        middle = (bottom + top) / 2
        where = side(middle)
        if where == 0:
            fits = middle
            break
        bottom, top = (middle, top) if where < 0 else (bottom, middle)
    if fits is None:
        return (bottom + top) / 2, (bottom + top) / 2
    return _edge(side, fits, low), _edge(side, fits, high)


def _edge(side: Callable[[float], int], inside: float, outside: float) -> float:
    """The last level towards ``outside`` that still fits."""
    if side(outside) == 0:
        return outside
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if side(middle) == 0 else (inside, middle)
    return inside


def needed(model: Model, recorded: np.ndarray, before: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Which requests to replay, bool (n,). before: which requests are before the jump. Of those, refused ones left no
    state, and the model's result depends on the earlier state. A window that begins with a request is known from the
    first admission after a refusal on.
    """
    keep = np.ones(len(recorded), np.bool_)
    if model.counts_refused:
        if model.window_by_clock or len(starts) > 1:
            return keep
        opens = np.flatnonzero(recorded[1:] & ~recorded[:-1] & before[1:])
        keep[: int(opens[0]) + 1 if len(opens) else 0] = False
        return keep
    if model.has_level:
        keep[: max(int(before.sum()) - _BEFORE, 0) if len(starts) == 1 else 0] = False
        return keep
    kept: np.ndarray = ~before | recorded
    return kept
