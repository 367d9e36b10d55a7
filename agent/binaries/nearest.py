"""Names of functions by address: in a file, for a file offset; in the kernel, by the text of /proc/kallsyms."""

from __future__ import annotations

import os
from bisect import bisect_left

import numpy as np

from agent.binaries.elf import SHT_DYNSYM, SHT_SYMTAB, SYMBOL, ElfError
from agent.binaries.gopcln import parse_func
from agent.binaries.gosym import GoBinary

#: Offsets or addresses per request.
MOST = 1024
_FUNCTIONS = (2, 10)  # STT_FUNC, STT_GNU_IFUNC
_MAX_NAME, _PIECE = 256, 1 << 16
#: Characters of a name, which bounds the size of a reply.
_LONGEST_SHOWN = 96
#: Bytes of /proc/kallsyms, about 500,000 symbols.
_KALLSYMS_BYTES = 32 << 20
#: An address further after a symbol does not belong to it.
_FAR = 1 << 20


class NamedFile(GoBinary):
    """A file whose functions are looked up by address."""

    def address(self, offset: int) -> int | None:
        """The virtual address of a file offset."""
        for one in self._loads:
            if int(one["offset"]) <= offset < int(one["offset"]) + int(one["filesz"]):
                return offset - int(one["offset"]) + int(one["vaddr"])
        return None

    def names_of(self, addresses: list[int]) -> list[str]:
        """The function at each of these virtual addresses; empty if unknown."""
        if self.section_header(".go.buildinfo") is not None:
            try:
                return [self._go_name(at) for at in addresses]
            except ElfError:
                pass  # it may still have symbols
        return self._symbol_names(np.array(addresses, np.uint64))

    def _go_name(self, address: int) -> str:
        base, header = self._pclntab
        text = self._module[0] if header.relative else 0
        index = int(np.searchsorted(self._functab[:, 0].astype(np.int64), address - text, "right")) - 1
        if not 0 <= index < len(self._functab) - 1:
            return ""
        origin = base + (header.functab if header.relative or header.names else 0)
        record = parse_func(self.read(origin + int(self._functab[index, 1]), 48), header.entry_size)
        return _text_of(
            self.read(base + header.names + record.name, min(_MAX_NAME, self.rest(base + header.names + record.name)))
        )

    def _symbol_names(self, wanted: np.ndarray) -> list[str]:
        """The nearest function that begins at or before each address and contains it."""
        starts, places = np.zeros(len(wanted), np.uint64), [(0, 0)] * len(wanted)
        for header, strings in self.symbol_tables(SHT_SYMTAB, SHT_DYNSYM):
            first = int(strings["offset"])
            for entries in self._pieces(header, SYMBOL):
                held = entries[
                    np.isin(entries["info"] & 15, _FUNCTIONS) & (entries["shndx"] != 0) & (entries["value"] != 0)
                ]
                held = held[np.argsort(held["value"], kind="stable")]
                at = np.searchsorted(held["value"], wanted, "right") - 1
                for i, j in enumerate(at.tolist()):
                    if j >= 0 and held["value"][j] > starts[i] and _reaches(held[j], int(wanted[i])):
                        starts[i] = held["value"][j]
                        places[i] = first + int(held["name"][j]), first + int(strings["size"])
        return [_text_of(self._bytes(at, min(_MAX_NAME, end - at))) if end else "" for at, end in places]


def _reaches(symbol: np.void, address: int) -> bool:
    return int(symbol["size"]) == 0 or address < int(symbol["value"]) + int(symbol["size"])


def _text_of(raw: bytes) -> str:
    name = raw.split(b"\0", 1)[0].decode("utf-8", "replace")
    return "".join(c if c.isprintable() and c != ";" else "?" for c in name[:_LONGEST_SHOWN])


def in_file(fds: list[int], offsets: list[int]) -> list[str]:
    """The function at each offset of the file, empty if unknown. Raises ElfError, OSError."""
    elf = NamedFile(fds[0], 128 << 20)
    addresses = [elf.address(int(offset)) for offset in offsets[:MOST]]
    known = elf.names_of([at for at in addresses if at is not None])
    found = iter(known)
    return [next(found) if at is not None else "" for at in addresses]


def in_kernel(fds: list[int], addresses: list[int]) -> list[str]:
    """The symbol at or before each address, as ``name`` or ``name [module]``; empty if there is none. fds:
    /proc/kallsyms, opened by a process that may see addresses.

    Raises ElfError if the kernel hides them.
    """
    wanted = sorted({int(at) for at in addresses[:MOST]})
    best: list[tuple[int, bytes]] = [(0, b"")] * len(wanted)
    os.lseek(fds[0], 0, os.SEEK_SET)
    rest, left, seen = b"", _KALLSYMS_BYTES, 0
    while left > 0 and (piece := os.read(fds[0], _PIECE)):
        left -= len(piece)
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            at = int(line[:16], 16)
            seen |= at
            i = bisect_left(wanted, at)
            if i < len(wanted) and at >= best[i][0]:
                best[i] = at, line
    if not seen:
        raise ElfError("the kernel hides its symbols' addresses (kernel.kptr_restrict)")
    for i in range(1, len(best)):
        best[i] = max(best[i], best[i - 1], key=lambda one: one[0])
    names = {at: _kernel_name(line) for at, (start, line) in zip(wanted, best, strict=True) if at - start < _FAR}
    return [names.get(int(at), "") for at in addresses]


def _kernel_name(line: bytes) -> str:
    words = line.split()
    name = _text_of(words[2]) if len(words) > 2 else ""
    return f"{name} {_text_of(words[3])}" if len(words) > 3 and words[3] != b"[bpf]" else name
