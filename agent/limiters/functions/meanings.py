"""The meanings of a function's result values: ``allowed: [1, 2]``, ``error: ..-1``, ``refused: other``. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from agent.limiters.reading import ALLOWED, CANCELLED, DELAYED, ERROR, REFUSED

CODES = {"allowed": ALLOWED, "refused": REFUSED, "delayed": DELAYED, "error": ERROR, "cancelled": CANCELLED}
OTHER = "other"
#: The code of a result without a declared meaning.
NONE = -1
_RANGE = re.compile(r"(-?\d+)?\.\.(-?\d+)?")
_LEAST, _MOST, MOST_VALUES = -(1 << 63), (1 << 63) - 1, 64


@dataclass(frozen=True)
class Meanings:
    """ranges: (first, last, code); the first range with a value decides. other: the code of all other
    values, or NONE.
    """

    ranges: tuple[tuple[int, int, int], ...]
    other: int = NONE

    def codes(self, values: np.ndarray) -> np.ndarray:
        """i64 (n,) -> codes of ``result``, i1 (n,)."""
        held = [(values >= first) & (values <= last) for first, last, _ in self.ranges]
        return np.select(held, [code for _, _, code in self.ranges], self.other).astype(np.int8)

    def __str__(self) -> str:
        described = dict[str, list[str]]()
        for first, last, code in self.ranges:
            described.setdefault(_name(code), []).append(
                str(first) if first == last else f"{first if first > _LEAST else ''}..{last if last < _MOST else ''}"
            )
        if self.other != NONE:
            described.setdefault(_name(self.other), []).append(OTHER)
        return ", ".join(f"{name}: {' '.join(values)}" for name, values in described.items())


def _name(code: int) -> str:
    return next(name for name, one in CODES.items() if one == code)


BOOLEAN = Meanings(((0, 0, REFUSED),), ALLOWED)


def parse(given: Mapping[str, object]) -> Meanings:
    """given: values, ranges, lists of both, or ``other`` by the names of ``CODES``. Raises ValueError with the wrong
    value.
    """
    ranges, other = list[tuple[int, int, int]](), NONE
    for name, values in given.items():
        items = values if isinstance(values, list) else [values]
        if not 0 < len(items) <= MOST_VALUES:
            raise ValueError(f"{name} has {len(items)} values: 1 to {MOST_VALUES}")
        for value in items:
            if value == OTHER:
                if other != NONE:
                    raise ValueError("two of them are `other`")
                other = CODES[name]
            else:
                ranges.append((*_range(value), CODES[name]))
    for at, (first, last, code) in enumerate(ranges):
        for begin, end, another in ranges[:at]:
            if first <= end and begin <= last and code != another:
                raise ValueError(f"{max(first, begin)} is both {_name(another)} and {_name(code)}")
    return Meanings(tuple(ranges), other)


def _range(value: object) -> tuple[int, int]:
    if isinstance(value, (bool, int)):
        first = last = int(value)
    elif isinstance(value, str) and (match := _RANGE.fullmatch(value)) and value != "..":
        first, last = int(match[1] or _LEAST), int(match[2] or _MOST)
    else:
        raise ValueError(f"{value!r} is not a value: use a whole number, a range (..-1, 1..3) or {OTHER}")
    if not _LEAST <= first <= last <= _MOST:
        raise ValueError(f"{value!r} is not a valid range")
    return first, last
