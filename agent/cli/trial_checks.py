"""Finds implausible values in decisions of a declared function, and the line of the declaration that causes them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from agent.limiters.catalogue import seen
from agent.limiters.functions.declared import ARGUMENTS, RESULTS, OwnFunction
from agent.limiters.functions.meanings import NONE
from agent.limiters.functions.seen import own_name
from agent.limiters.functions.words import Word
from agent.limiters.reading import UNKNOWN

if TYPE_CHECKING:
    from agent.cli.trial import Declarations

#: Bounds of plausible values: counts, waits (ns), the lowest address, the length of a key.
_MOST_UNITS, _LONGEST_NS, _FIRST_PAGE, _LONGEST_KEY, _DECADE_NS = 1e12, 366 * 86_400e9, 4096, 1 << 16, 3.2e17
#: Decisions without a value before its location is doubted (a key may be missing now and then); decisions that are
#: kept.
_ENOUGH, _REMEMBERED = 5, 64


class TrialChecks:
    """reported: the problems reported so far, each once."""

    def __init__(self, declarations: Declarations, functions: Iterable[OwnFunction]) -> None:
        self.reported: list[str] = []
        numbers = list(seen())
        self._known = [(numbers.index(own_name(one.name)), one) for one in functions]
        self._declarations = declarations
        self._first = dict[int, np.ndarray]()

    def of(self, records: np.ndarray) -> list[str]:
        """New problems in these records."""
        found = []
        for number, one in self._known:
            of_function = records[records["library"] == number]
            of_function = np.concatenate([self._first[number], of_function]) if number in self._first else of_function
            self._first[number] = of_function[:_REMEMBERED]
            found += self._new(one, of_function, len(of_function) >= _ENOUGH)
        return found

    def rest(self) -> list[str]:
        """New problems once all records are in."""
        return [
            text
            for number, one in self._known
            if number in self._first
            for text in self._new(one, self._first[number], True)
        ]

    def _new(self, one: OwnFunction, records: np.ndarray, enough: bool) -> list[str]:
        found = []
        for at, why in _checks(one, records, enough):
            text = f"{self._declarations.where(one, *at)}: {'.'.join(at)}: {why}"
            if not any(reported_text.partition(": ")[0] == text.partition(": ")[0] for reported_text in self.reported):
                self.reported.append(text)
                found.append(text)
        return found


def _checks(one: OwnFunction, records: np.ndarray, enough: bool) -> Iterator[tuple[tuple[str, ...], str]]:
    """(keys of the declaration, problem). enough: enough decisions to conclude that a value absent in all of them is
    elsewhere.
    """
    if not len(records):
        return
    for section, words, names in (("arguments", one.arguments, ARGUMENTS), ("results", one.results, RESULTS)):
        for key, word in words.items():
            if key in ("key", "key_size", "limiter", "now"):
                continue
            if section == "arguments" and key in one.results:
                continue
            raw = records[names[key]]
            if word.in_memory and (raw == UNKNOWN).all():
                if enough:
                    yield (
                        (section, key),
                        (
                            f"nothing can be read at {word.place}: is {word.place.partition('+')[0].lstrip('(')} a"
                            " pointer there?"
                        ),
                    )
            elif key == "result":
                yield from _unmeant(one, word, raw)
            elif key != "error" and (why := _odd(key, word, raw)):
                yield (section, key), why
    if "limiter" in one.arguments and (records["limiter"] < _FIRST_PAGE).any():
        yield ("arguments", "limiter"), f"{int(records['limiter'].min()):#x} is no address"
    if "now" in one.arguments and (why := _timeless(one.arguments["now"], records)):
        yield ("arguments", "now"), why
    yield from _keys(one, records, enough)


def _timeless(word: Word, records: np.ndarray) -> str:
    """Checks a wall clock value: a program's wall clock may be set, but not to another decade."""
    reported = word.numbers(records[ARGUMENTS["now"]]) * (word.unit_ns or 1)
    far = reported[~(np.abs(reported - time.time_ns()) < _DECADE_NS)]
    return (
        f"{far[0]:g} ns is not the time of day since 1970: is its place right, and its unit (ns, us, ms, s)?"
        if len(far)
        else ""
    )


def _unmeant(one: OwnFunction, word: Word, raw: np.ndarray) -> Iterator[tuple[tuple[str, ...], str]]:
    assert one.answers is not None
    values = word.integers(raw)
    unmeant = values[one.answers.codes(values) == NONE]
    if len(unmeant):
        more = "" if word.type else "; say its type (bool ax reads one byte, i32 ax four)"
        yield ("results", "result"), f"{int(unmeant[0])} is none of {one.answers}{more}"
    elif word.type == "bool" and (values > 1).any():
        yield ("results", "result"), f"{int(values.max())} is no bool"


def _odd(key: str, word: Word, raw: np.ndarray) -> str:
    values = word.numbers(raw)
    values = values[~np.isnan(values)] * (word.unit_ns or 1)
    least = -_MOST_UNITS if key == "remaining" else 0.0 if key in ("wait", "cost") else 1e-9
    most = _LONGEST_NS if key in ("wait", "window") else _MOST_UNITS
    if not len(values):
        return "it is no number: is its type right?"
    odd = values[(values < least) | (values > most) | ((values != 0) & (np.abs(values) < 1e-9))]
    if key == "wait":
        odd = values[values > most]  # a wait below 0 means no wait
    return f"{odd[0]:g} makes no sense: is its place right, and its type ({word.type or 'i64'})?" if len(odd) else ""


def _keys(one: OwnFunction, records: np.ndarray, enough: bool) -> Iterator[tuple[tuple[str, ...], str]]:
    word = one.arguments.get("key")
    if word is None or word.type:
        return
    sizes = records["key_size"]
    if (sizes == UNKNOWN).all():
        if enough:
            yield ("arguments", "key"), f"nothing can be read at {word.place}: is it a pointer to the key's bytes?"
    elif "key_size" in one.arguments and (sizes[sizes != UNKNOWN] > _LONGEST_KEY).any():
        yield (
            ("arguments", "key_size"),
            f"a key of {int(sizes[sizes != UNKNOWN].max())} bytes makes no sense: is its place right, and its type?",
        )
    else:
        for record in records[sizes != UNKNOWN]:
            text = bytes(record["key_text"]).ljust(64, b"\0")[: min(int(record["key_size"]), 63)]
            if not text.decode("utf-8", "ignore").isprintable():
                yield ("arguments", "key"), f"{text[:16]!r} is no text: is its place right?"
                return
