"""The text of a finding as a template: texts, instants, and values with their unit. The display formats it.

``finding.parts`` is a JSON array: a text as a string, an instant as an integer (CLOCK_BOOTTIME ns), a value as [value,
unit], null if unknown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from agent.columns import NULL_I64
from agent.common.duration import number, span
from agent.common.instants import iso

_MOST = 1e18  # larger values were not measured
#: CLOCK_BOOTTIME ns -> Unix ns, arrays of shape (n,); NULL_I64 if unknown.
ToWall = Callable[[np.ndarray], np.ndarray]


class Value(NamedTuple):
    """unit: ns, s, ratio, 1/s; or the singular of what is counted (``message``), or a rate of it (``message/s``)."""

    value: float | None
    unit: str = ""


Piece = str | int | Value


def unknown(t_ns: np.ndarray) -> np.ndarray:
    """A ``ToWall`` for unknown wall times."""
    return np.full(len(t_ns), NULL_I64)


def text_of(parts: Sequence[Piece], to_wall: ToWall, utc: bool = False) -> str:
    """Pieces as one text with ISO 8601 times to the millisecond, local with their zone unless ``utc``. An instant with
    unknown wall time becomes ``boot+SECONDS``, which ``--since`` accepts.
    """
    instants = [part for part in parts if isinstance(part, int)]
    walls = iter(to_wall(np.array(instants, np.int64)).tolist() if instants else ())
    return "".join(
        part if isinstance(part, str) else measured(part) if isinstance(part, Value) else _at(part, next(walls), utc)
        for part in parts
    )


def plain(parts: Sequence[Piece]) -> str:
    """Pieces as one text, for unknown wall times."""
    return text_of(parts, unknown)


def measured(of: Value) -> str:
    """A value as text. The sign of a duration is left out, because the sentence expresses it."""
    if of.value is None:
        return "an unknown value"
    if of.unit in _TEXTS:
        return _TEXTS[of.unit](of.value)
    noun, rate = of.unit.removesuffix("/s"), of.unit.endswith("/s")
    counted = f"{number(of.value)} {noun}{'' if of.value == 1 else 's'}"
    return f"{counted} per second" if rate else counted


def _duration(ns: float) -> str:
    """Three digits below two minutes, whole seconds from there on."""
    size = abs(ns)
    if size < 120e9:
        return span(size)
    minutes, seconds = divmod(round(size / 1e9), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return " ".join(f"{n} {unit}" for n, unit in ((days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")) if n)


_TEXTS: dict[str, Callable[[float], str]] = {
    "": number,
    "ns": _duration,
    "s": lambda s: _duration(s * 1e9),
    "ratio": lambda share: f"{number(100 * share)} %",
    "1/s": lambda rate: f"{number(rate)} per second",
}


def _at(t_ns: int, wall_ns: int, utc: bool) -> str:
    return f"boot+{t_ns / 1e9:.3f}" if wall_ns == NULL_I64 else iso(wall_ns + 500_000, 3, utc)


def pieces(raw: object, sentence: object) -> list[Piece]:
    """The pieces of a row of ``finding``: its ``parts`` as JSON, else its sentence as one text. Both as text or bytes,
    or None.
    """
    stored, words = (v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v or "") for v in (raw, sentence))
    try:
        listed = json.loads(stored)
        return [_piece(part) for part in listed] if listed and isinstance(listed, list) else [words]
    except (ValueError, RecursionError):
        return [words]


def _piece(part: object) -> Piece:
    """Raises ValueError for an invalid piece."""
    match part:
        case bool():
            pass
        case str():
            return part
        case int() if abs(part) < 2**63:
            return part
        case [None, str(unit)]:
            return Value(None, unit)
        case [bool(), _]:
            pass
        case [int() | float() as value, str(unit)] if abs(value) < _MOST:
            return Value(value, unit)
    raise ValueError(f"{part!r} is no piece of a sentence")
