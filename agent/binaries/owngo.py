"""A Go program's functions by the name or the address that a declaration gives. Raises ElfError."""

from __future__ import annotations

import re

import numpy as np

from agent.binaries import gopcln
from agent.binaries.elf import ElfError
from agent.binaries.gosym import GoBinary, GoFunction
from agent.binaries.symbols import nearest

_MOST_NEAR = 4096


class OwnGo(GoBinary):
    def one(self, symbol: str) -> GoFunction | str:
        """The function of that name, or why there is none to be probed."""
        names = self.names({symbol.encode()})
        found = self.functions(names)
        if len(found) == 1:
            return found[0]
        if found:
            return f"{len(found)} functions have that name: name its address"
        return "it is inlined wherever it is called, so nothing can be probed" if names else "there is no such function"

    def remedy(self, symbol: str, near: bool) -> tuple[str, tuple[str, ...]]:
        """What to do where there is not one, and names that are like it."""
        if self.names({symbol.encode()}):
            return "put //go:noinline above it, or build it with -gcflags=PACKAGE=-l; nm prints addresses", ()
        return (
            "go tool nm prints those that there are; one that is inlined wherever it is called may not be among them",
            tuple(self._near(symbol) if near else ()),
        )

    def _near(self, symbol: str) -> list[str]:
        last = re.compile(rb"(?i)\b" + re.escape(symbol.rpartition(".")[2].encode()) + rb"\b")
        found = dict[str, str]()
        for _, piece in self._name_table():
            for match in last.finditer(piece):
                begin, end = piece.rfind(b"\0", 0, match.start()) + 1, piece.find(b"\0", match.end())
                name = piece[begin:end].decode("utf-8", "replace")
                found[name] = name
                if len(found) >= _MOST_NEAR:
                    return nearest(symbol, found)
        return nearest(symbol, found)

    def containing(self, vaddr: int) -> GoFunction:
        """The function that an address lies in."""
        base, header = self._pclntab
        entries = self._functab[:-1, 0].astype(np.int64)
        offset = vaddr - self._text if header.relative else vaddr
        index = int(np.searchsorted(entries, offset, "right")) - 1
        if index < 0:
            raise ElfError(f"no Go function lies at {vaddr:#x}")
        begin, end = self._bounds(index)
        if not begin <= vaddr < end or end - begin > 1 << 18:
            raise ElfError(f"no Go function lies at {vaddr:#x}")
        origin = base + (header.functab if header.relative or header.names else 0)
        record = gopcln.parse_func(self.read(origin + int(self._functab[index, 1]), 48), header.entry_size)
        return GoFunction("", begin, end, record)
