"""Finds a Go program's functions by a declared name or address. Raises ElfError."""

from __future__ import annotations

import re

import numpy as np

from agent.binaries import gopcln
from agent.binaries.elf import ElfError
from agent.binaries.gosym import GoBinary, GoFunction
from agent.binaries.symbols import nearest

#: Names that are compared, bytes of one, equal characters that make names similar.
_MOST_NEAR, _LONGEST, _ALIKE = 4096, 512, 3


class OwnGo(GoBinary):
    def one(self, symbol: str) -> GoFunction | str:
        """The function of that name, or why it cannot be probed."""
        names = self.names({symbol.encode()})
        found = self.functions(names)
        if len(found) == 1:
            return found[0]
        if found:
            return f"{len(found)} functions have that name: name its address"
        return "it is inlined wherever it is called, so nothing can be probed" if names else "there is no such function"

    def remedy(self, symbol: str, near: bool) -> tuple[str, tuple[str, ...]]:
        """The remedy if it cannot, and similar names."""
        if self.names({symbol.encode()}):
            return "put //go:noinline above it, or build it with -gcflags=PACKAGE=-l; nm prints addresses", ()
        return (
            "go tool nm prints those that there are; one that is inlined wherever it is called may not be among them",
            tuple(self._near(symbol) if near else ()),
        )

    def _near(self, symbol: str) -> list[str]:
        """Names with the same last part, else names that begin alike."""
        last, found = symbol.rpartition(".")[2].encode(), dict[str, str]()
        for wanted in (re.escape(last) + rb"\b", re.escape(last[:_ALIKE])):
            hint = re.compile(rb"(?i)[.)]" + wanted)
            for _, piece in self._name_table():
                for match in hint.finditer(piece):
                    begin, end = piece.rfind(b"\0", 0, match.start()) + 1, piece.find(b"\0", match.end())
                    name = piece[begin : min(end, begin + _LONGEST)].decode("utf-8", "replace")
                    found[name] = name
                    if len(found) >= _MOST_NEAR:
                        break
            if found:
                break
        return nearest(symbol, found)

    def containing(self, vaddr: int) -> GoFunction:
        """The function that contains an address."""
        base, header = self._pclntab
        entries = self._functab[:-1, 0].astype(np.int64)
        offset = vaddr - self._module[0] if header.relative else vaddr
        index = int(np.searchsorted(entries, offset, "right")) - 1
        if index < 0:
            raise ElfError(f"no Go function lies at {vaddr:#x}")
        begin, end = self._bounds(index)
        if not begin <= vaddr < end or end - begin > 1 << 18:
            raise ElfError(f"no Go function lies at {vaddr:#x}")
        origin = base + (header.functab if header.relative or header.names else 0)
        record = gopcln.parse_func(self.read(origin + int(self._functab[index, 1]), 48), header.entry_size)
        return GoFunction("", begin, end, record)
