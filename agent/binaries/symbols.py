"""Functions in a file's symbol tables, by name and by address."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from agent.binaries.elf import SHT_DYNSYM, SHT_SYMTAB, SYMBOL, Elf, ElfError
from agent.binaries.symbolnames import COLD, plain

_BOTH = SHT_SYMTAB, SHT_DYNSYM  # the table of all functions first
_FUNC, _IFUNC = 2, 10
_PIECE, _LONGEST_NAME = 1 << 20, 2048
_MOST_NAMES, _MOST_COMPARED, _MOST_NEAR = 200_000, 10_000, 5
BUDGET = 256 << 20


class NamedFunction(NamedTuple):
    """A function's symbol. value: its address, 0 if it is in another file. size: in bytes, 0 if unknown."""

    name: str
    value: int
    size: int
    indirect: bool = False


class SymbolFile(Elf):
    """An ELF file behind an open descriptor, which the caller closes. Every method raises ElfError and OSError."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, BUDGET)

    @property
    def stripped(self) -> bool:
        """Whether only exported functions have names."""
        return not (self.sections["type"] == SHT_SYMTAB).any()

    def named(self, wanted: re.Pattern[bytes], most: int = 64) -> list[NamedFunction]:
        """Symbols whose whole names match, with the zero after them."""
        found = dict[tuple[str, int], NamedFunction]()
        for header, strings in self.symbol_tables(*_BOTH):
            at = dict(self._places(strings, wanted, most))
            if not at:
                continue
            places = np.fromiter(at, np.uint32, len(at))
            for entries in self._pieces(header, SYMBOL):
                kinds = entries["info"] & 15
                hits = np.isin(entries["name"], places) & np.isin(kinds, (0, _FUNC, _IFUNC))
                for place, info, _, section, value, size in entries[hits][:most].tolist():
                    there = value if section else 0
                    found.setdefault((at[place], there), NamedFunction(at[place], there, size, info & 15 == _IFUNC))
        return list(found.values())

    def _places(self, strings: np.void, wanted: re.Pattern[bytes], most: int) -> Iterator[tuple[int, str]]:
        """Positions in a string table, also of names that are the tail of another."""
        offset, size, left = int(strings["offset"]), int(strings["size"]), most * 64
        for start in range(0, size, _PIECE):
            piece = self._bytes(offset + start, min(_PIECE + _LONGEST_NAME, size - start))
            at = 0
            while (match := wanted.search(piece, at)) and match.start() < _PIECE:
                at, left = match.start() + 1, left - 1
                if left < 0:
                    raise ElfError("more names match than are looked at")
                yield start + match.start(), match[0][:-1].decode("utf-8", "replace")

    def around(self, vaddr: int) -> NamedFunction | None:
        """The function that contains an address, by the symbols with a size."""
        for header, strings in self.symbol_tables(*_BOTH):
            for entries in self._pieces(header, SYMBOL):
                inside = (
                    (entries["info"] & 15 == _FUNC)
                    & (entries["shndx"] != 0)
                    & (entries["value"] <= vaddr)
                    & (vaddr - entries["value"] < entries["size"])
                )
                for place, _, _, _, value, size in entries[inside][:1].tolist():
                    raw = self._bytes(
                        int(strings["offset"]) + place, max(0, min(_LONGEST_NAME, int(strings["size"]) - place))
                    )
                    return NamedFunction(raw.split(b"\0", 1)[0].decode("utf-8", "replace"), value, size)
        return None

    def near(self, written: str) -> list[str]:
        """Similar names of functions: those with the same last part first."""
        names, last = dict[str, str](), _last(written).encode()
        for header, strings in self.symbol_tables(*_BOTH):
            text = self._bytes(int(strings["offset"]), min(int(strings["size"]), 16 * _PIECE))
            for entries in self._pieces(header, SYMBOL):
                functions = entries[
                    (entries["info"] & 15 == _FUNC) & (entries["value"] != 0) & (entries["name"] < len(text))
                ]
                for place in functions["name"][:_MOST_NAMES].tolist():
                    raw = text[place : min(text.find(b"\0", place), place + _LONGEST_NAME)]
                    if not COLD.search(raw) and (len(names) < _MOST_COMPARED or last in raw.lower()):
                        name = raw.decode("utf-8", "replace")
                        names.setdefault(plain(name), name)
        return nearest(written, names)


def _last(name: str) -> str:
    return re.split(r"::|\.", name.partition("(")[0] or name)[-1].lower()


def nearest(written: str, names: dict[str, str]) -> list[str]:
    """names: displayed name -> name in the file. Results have both if they differ."""
    last = _last(written)
    same = [name for name in names if _last(name) == last]
    like = difflib.get_close_matches(written, names, _MOST_NEAR, 0.5) if len(names) <= _MOST_COMPARED else []
    inside = [name for name in names if len(last) > 2 and last in name.lower()]
    found = list(dict.fromkeys([*same, *like, *inside]))[:_MOST_NEAR]
    return [name if names[name] == name else f"{name} ({names[name]})" for name in found]
