"""The model, limits and clock of a limiter: from its library's declaration, its rows, and the settings for hand-written
ones. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np

from agent.limiters.catalogue import CATALOGUE
from agent.limiters.model_settings import Declared
from agent.limiters.models.catalogue import MODELS
from agent.limiters.models.model import SECOND, Limit, Model

#: For a library without a model of its own: the model of its algorithm, in another implementation.
BY_ALGORITHM = {
    "token bucket": "token bucket",
    "leaky bucket": "leaky bucket",
    "gcra": "GCRA",
    "fixed window": "fixed window",
    "sliding window": "sliding log",
    "sliding window of slots": "sliding window of slots",
    "sliding window counter": "sliding window of two counters",
    "sliding log": "sliding log",
    "moving window": "sliding log",
    "leap array": "leap array",
}
#: The clocks of limiters. The first three follow steps of the wall clock; ``remote wall`` is that of the host with the
#: state.
FOLLOWS = ("caller", "wall", "remote wall")


@dataclass(frozen=True)
class Ruled:
    """What is known about a limiter's decisions.

    model: None if unknown. lacking: why it cannot be replayed, empty if it can. doubts: why the result is an estimate.
    shared: its state is not the process's own.
    """

    model: Model | None
    limit: Limit
    clock: str
    shared: bool
    lacking: str = ""
    doubts: tuple[str, ...] = ()


def ruled(row: np.void, declarations: Sequence[Declared] = ()) -> Ruled:
    """row: one of a limiter's decisions. declarations: all that match apply; the first with a value wins."""
    name, library = (row[column].decode("utf-8", "replace") for column in ("limiter_id", "library"))
    matching = [one for one in declarations if fnmatchcase(name, one.pattern)]
    own, clock, model_name = _of_library(library, row["library_version"].decode("utf-8", "replace"))
    doubts = () if own or not model_name else (f"{library}'s own {model_name} may differ from the model's",)
    declared = next((one.model for one in matching if one.model), "")
    if declared:
        model_name, doubts = declared, ()
    model = MODELS.get(model_name)
    limit = _limit(row, matching, model)
    clock = next((one.clock for one in matching if one.clock), clock)
    shared = next((one.shared for one in matching if one.shared is not None), clock == "remote wall")
    if model is None:
        return Ruled(
            None, limit, clock, shared, "its algorithm is not known: declare it in limiter_models, or use --model"
        )
    if not clock:
        doubts = (*doubts, "its clock is not known: the wall clock is assumed")
    lacks = ", ".join(_WORDS[need] for need in model.lacks(limit))
    return Ruled(model, limit, clock or "wall", shared, f"its {lacks} is not known" if lacks else "", doubts)


_WORDS = {"per_s": "rate", "burst": "burst", "count": "limit", "window_ns": "window"}


def _of_library(library: str, version: str) -> tuple[bool, str, str]:
    """(whether the model is that implementation, its clock, the model's name); empty for an unknown library."""
    entry = next((one for one in CATALOGUE if one.library == library), None)
    if entry is None:
        return False, "", ""
    step = entry.step(version)
    named = step.model or entry.model
    immune = step.back == step.forward == "none"  # versions of it may use another clock
    return (
        bool(named),
        "monotonic" if immune else entry.clock,
        named or BY_ALGORITHM.get(re.sub(r"[^a-z ]", "", entry.algorithm.lower()), ""),
    )


def _limit(row: np.void, matching: Sequence[Declared], model: Model | None) -> Limit:
    def value_of(what: str) -> float:
        return next((value for one in matching if (value := getattr(one, what))), 0)

    rate, burst, window = (_positive(row[name]) for name in ("limit_per_s", "burst", "window_ns"))
    window = int(value_of("window_ns") or window)
    rate = value_of("per_s") or rate
    count = value_of("count") or round(rate * window / SECOND) or (burst if window else 0)
    if model and "per_s" in model.needs and not rate and window:
        rate = (value_of("count") or burst) / window * SECOND
    if not burst and window and model and "burst" in model.needs:
        burst = count
    limit = Limit(per_s=rate, burst=value_of("burst") or burst, count=count, window_ns=window)
    return replace(limit, slots=int(value_of("slots") or (2 if model and model.name == "leap array" else 10)))


def _positive(value: np.number) -> float:
    number = float(value)
    return number if 0 < number < 1e300 else 0.0
