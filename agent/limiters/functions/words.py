"""A word in a declaration: its place (registers: agent/arch/registers.py), type and unit. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from agent.arch.registers import GO, STACK, SYSTEM_V, plain, unreadable
from agent.limiters.library import MOST_OFFSET
from agent.limiters.library import place as place_of
from agent.limiters.reading import UNKNOWN

TYPES = ("bool", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f32", "f64")
UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_NAMES = {
    "int8": "i8",
    "uint8": "u8",
    "byte": "u8",
    "int16": "i16",
    "uint16": "u16",
    "int32": "i32",
    "uint32": "u32",
    "int64": "i64",
    "uint64": "u64",
    "float": "f32",
    "float32": "f32",
    "double": "f64",
    "float64": "f64",
    "usize": "u64",
    "isize": "i64",
    "size_t": "u64",
}
_DIFFERING = {"int": "i32 in C and C++, i64 in Go", "long": "i64", "unsigned": "u32", "uint": "u64 in Go", "char": "i8"}


class WordError(ValueError):
    """An invalid word; the text has the reason and the correct form."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.remedy = remedy


@dataclass(frozen=True)
class Word:
    """place: as in agent/limiters/library.py. type: empty if not given. unit_ns: of a time; 0 if not given."""

    place: str
    type: str = ""
    unit_ns: int = 0

    @property
    def in_memory(self) -> bool:
        return "+" in self.place

    def integers(self, words: np.ndarray) -> np.ndarray:
        """i64 (n,), for integer types; values from 2**63 on are negative."""
        kind = self.type or "i64"
        if kind == "bool":
            return (words & np.uint64(0xFF)).astype(np.int64)
        return words.astype(f"<u{_bytes(kind)}").view(f"<{kind[0]}{_bytes(kind)}").astype(np.int64)

    def numbers(self, words: np.ndarray) -> np.ndarray:
        """f64 (n,), NaN for an unreadable word (all ones)."""
        kind = self.type or "i64"
        if kind[0] == "f":
            size = _bytes(kind)
            with np.errstate(invalid="ignore", over="ignore"):
                found = words.astype(f"<u{size}").view(f"<f{size}").astype(np.float64)
        elif kind == "u64":
            found = words.astype(np.float64)
        else:
            found = self.integers(words).astype(np.float64)
        return np.where(words == UNKNOWN, np.nan, found) if self.in_memory else found


def _bytes(kind: str) -> int:
    return int(kind[1:]) // 8


def parse(text: object, registers: tuple[str, ...], limiter: bool, timed: bool = False) -> Word:
    """Parses ``[TYPE] PLACE [UNIT]``. registers: those with a meaning there. limiter: whether the place may start from
    the limiter. timed: whether a unit is allowed. Raises WordError.
    """
    shown = f"a place: a register ({', '.join(registers)}), or a word in memory ({registers[0]}+24"
    shown += ", limiter+8)" if limiter else ")"
    if not isinstance(text, str):
        raise WordError(f"{text!r} is not a place", shown)
    parts = re.sub(r"\s*\+\s*", "+", text).split()
    unit = UNITS_NS[parts.pop()] if timed and parts and parts[-1] in UNITS_NS else 0
    kind = ""
    if len(parts) == 2:
        kind = _type(parts[0])
        del parts[0]
    if len(parts) != 1:
        raise WordError(
            f"{text!r} is not a place",
            f"write [TYPE] PLACE{' [UNIT]' if timed else ''}, as in i32 {registers[0]}{' ms' if timed else ''}; it is"
            f" {shown}",
        )
    place = _place(parts[0], registers, limiter)
    if kind[:1] == "f" and "+" not in place:
        raise WordError(
            f"{text!r}: floats in registers cannot be read",
            f"name its place in memory, such as f64 {registers[0]}+24, or leave it out",
        )
    return Word(place, kind, unit)


def _type(text: str) -> str:
    if text in _DIFFERING:
        raise WordError(f"the size of {text!r} depends on the language", f"{text} is {_DIFFERING[text]}")
    kind = _NAMES.get(text, text)
    if kind not in TYPES:
        raise WordError(f"there is no type {text!r}", f"one of {', '.join(TYPES)}")
    return kind


def _place(text: str, registers: tuple[str, ...], limiter: bool) -> str:
    place = plain(text) if not text.startswith(("limiter", "(limiter")) else text
    base = re.match(r"\(?(\w+)", place)
    allowed = (*registers, STACK, *(("limiter",) if limiter else ()))
    if base is None or base[1] not in allowed:
        if base is not None and base[1] == "limiter":
            raise WordError(
                "the place of the limiter is not declared",
                f"name the register among the arguments, as in limiter: {registers[0]}",
            )
        raise WordError(
            (
                f"there is no register {base[1] if base else text!r}"
                if base and base[1] not in GO + SYSTEM_V
                else f"{base[1] if base else text!r} has no meaning there"
            ),
            f"one of {', '.join(allowed)}"
            + ("; registers of floats cannot be read" if base and unreadable(base[1]) else ""),
        )
    try:
        place_of(place)
    except ValueError:
        raise WordError(
            f"{text!r} is not a place",
            f"a register ({registers[0]}), the word at an offset up to {MOST_OFFSET} from where it points"
            f" ({registers[0]}+24), or behind that one (({registers[0]}+24)+8)",
        ) from None
    return place
