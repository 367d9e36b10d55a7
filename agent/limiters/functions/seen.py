"""Converts a declared function to the form of a limiter library: its programs, and how its records are read. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np

from agent.columns import NULL_I64
from agent.limiters.decision import hashed
from agent.limiters.functions.declared import ARGUMENTS, NUMBER, RESULTS, OwnFunction
from agent.limiters.functions.meanings import NONE
from agent.limiters.functions.words import Word
from agent.limiters.library import Function, Seen
from agent.limiters.reading import ALLOWED, DELAYED, ERROR, UNKNOWN

#: In the column ``library`` of its decisions.
LIBRARY = "declared"
#: Names of its programs, by the declaration's number.
_PROGRAM = "limiter_own{}_{}"


def all_seen(functions: Iterable[OwnFunction]) -> dict[str, Seen]:
    """The declared functions for ``catalogue.declare``."""
    return {own_name(one.name): seen(one, number) for number, one in enumerate(functions)}


def seen(one: OwnFunction, number: int) -> Seen:
    """One function; number: of its declaration."""
    entry, left, returned = (_PROGRAM.format(number, what) for what in ("entered", "left", "returned"))
    arguments = {
        NUMBER if key == "key" and word.type else ARGUMENTS[key]: word.place for key, word in one.arguments.items()
    }
    results = {RESULTS[key]: word.place for key, word in one.results.items()}
    function = Function(
        one.symbol or one.name,
        "decision",
        entry,
        left,
        arguments,
        results,
        "decisions",
        language=one.language,
        returned="" if one.language == "go" else returned,
        inside=one.language != "go" and not one.symbol,
    )
    return Seen(one.name, (), (function,), one.name, partial(read, one))


def arguments_of(one: OwnFunction, function: Function, mapped: bool) -> dict[str, object]:
    """The analyzer's parameters for a file (agent/binaries/ownfunction.py). mapped: it is a shared library."""
    return {
        "library": own_name(one.name),
        "entry": function.entry,
        "left": function.end,
        "returned": function.returned,
        "language": one.language,
        "symbol": one.symbol,
        "address": one.address,
        "offset": one.offset,
        "build_id": one.build_id,
        "mapped": mapped,
    }


def own_name(name: str) -> str:
    """The name of a declared limiter among the libraries."""
    return f"own:{name}"


def read(one: OwnFunction, r: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of limiter_decision. A result without a declared meaning is an error."""
    numbers = {key: word.numbers(r[RESULTS[key]]) for key, word in one.results.items() if key != "result"}
    for key, word in one.arguments.items():
        if key not in ("limiter", "key", "key_size") and key not in numbers:
            numbers[key] = word.numbers(r[ARGUMENTS[key]])
    wait = _ns(one.results.get("wait"), numbers.get("wait"), len(r))
    result = _result(one, r, wait, numbers.get("error"))
    window = _ns(one.results.get("window") or one.arguments.get("window"), numbers.get("window"), len(r))
    if "window" not in numbers and one.replay.window_ns:
        window = np.full(len(r), one.replay.window_ns)
    now = _ns(one.arguments.get("now"), numbers.get("now"), len(r), r["now_ext"])
    limit, rate = (_reported(one, numbers, key, len(r)) for key in ("limit", "per_s"))
    through = (result == ALLOWED) | (result == DELAYED)
    columns = {
        "library": np.full(len(r), LIBRARY.encode(), "S48"),
        "cost": numbers.get("cost", np.ones(len(r))),
        "result": result,
        "wait_ns": np.select([~through, (result == DELAYED) & (wait == NULL_I64)], [NULL_I64] * 2, np.maximum(wait, 0)),
        "limit_per_s": np.where(
            np.isnan(rate), np.divide(limit, window / 1e9, out=np.full(len(r), np.nan), where=window > 0), rate
        ),
        "burst": _reported(one, numbers, "burst", len(r)),
        "window_ns": window,
        "program_wall_ns": now,
        "remaining": numbers.get("remaining", np.full(len(r), np.nan)),
        "step_immune": np.full(
            len(r), {"monotonic": 1, "wall": 0, "remote wall": 0}.get(one.replay.clock, -1), np.int8
        ),
    }
    number = one.arguments.get("key")
    if number is not None and number.type:
        columns["key"] = _keys(number.integers(r[NUMBER]))
    return columns


def _reported(one: OwnFunction, numbers: Mapping[str, np.ndarray], key: str, n: int) -> np.ndarray:
    """The values that were read, else the declared one."""
    declared = {"limit": one.replay.count, "per_s": one.replay.per_s, "burst": one.replay.burst}[key]
    return numbers[key] if key in numbers else np.full(n, declared or np.nan)


def _ns(word: Word | None, values: np.ndarray | None, n: int, raw: np.ndarray | None = None) -> np.ndarray:
    """Durations in ns. raw: the same words as integers, if a float is too inexact, as for ns since 1970."""
    if word is None or values is None:
        return np.full(n, NULL_I64)
    whole = values * (word.unit_ns or 1)
    fits = np.abs(whole) < 2.0**63  # false for NaN
    exact = (
        np.where(fits, whole, 0).astype(np.int64)
        if raw is None or word.type[:1] == "f"
        else word.integers(raw) * (word.unit_ns or 1)
    )
    return np.where(fits, exact, NULL_I64)


def _result(one: OwnFunction, r: np.ndarray, wait: np.ndarray, error: np.ndarray | None) -> np.ndarray:
    word = one.results.get("result")
    codes = np.full(len(r), ALLOWED, np.int8)
    if word is not None and one.answers is not None:
        words = r[RESULTS["result"]]
        codes = one.answers.codes(word.integers(words))
        if word.in_memory:
            codes[words == UNKNOWN] = NONE
    codes[codes == NONE] = ERROR
    codes[(codes == ALLOWED) & (wait > 0)] = DELAYED
    if error is not None:
        codes[error != 0] = ERROR
    return codes


def _keys(values: np.ndarray) -> np.ndarray:
    """Numeric keys in the form of reported ones."""
    each, which = np.unique(values, return_inverse=True)
    return np.array([hashed(b"%d" % value) for value in each.tolist()], "S16")[which]
