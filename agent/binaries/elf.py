"""A bounded reader of 64-bit little-endian ELF files from untrusted users.

Reads with pread only (a mapping of a file that is truncated meanwhile would kill the process), in pieces, and a limited
number of bytes per file, so time and memory are bounded. Layouts: elf(5), System V ABI chapter 4.
"""

from __future__ import annotations

import bisect
import os
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from agent.arch.machine import ElfError as ElfError  # noqa: PLC0414 - readers of files import it from here
from agent.arch.machine import machine

MAX_SEGMENTS, MAX_SECTIONS, MAX_CANDIDATES, MAX_NEEDED = 512, 16384, 4096, 64
_PIECE = 1 << 20
_BUDGET = 64 << 20
_MAX_NAME = 256
_PAGE = 4096
_READS_A_BYTE = 16

_HEADER = np.dtype(
    [
        ("ident", "V16"),
        ("type", "<u2"),
        ("machine", "<u2"),
        ("version", "<u4"),
        ("entry", "<u8"),
        ("phoff", "<u8"),
        ("shoff", "<u8"),
        ("flags", "<u4"),
        ("ehsize", "<u2"),
        ("phentsize", "<u2"),
        ("phnum", "<u2"),
        ("shentsize", "<u2"),
        ("shnum", "<u2"),
        ("shstrndx", "<u2"),
    ]
)
_SEGMENT = np.dtype(
    [
        ("type", "<u4"),
        ("flags", "<u4"),
        ("offset", "<u8"),
        ("vaddr", "<u8"),
        ("paddr", "<u8"),
        ("filesz", "<u8"),
        ("memsz", "<u8"),
        ("align", "<u8"),
    ]
)
_SECTION = np.dtype(
    [
        ("name", "<u4"),
        ("type", "<u4"),
        ("flags", "<u8"),
        ("addr", "<u8"),
        ("offset", "<u8"),
        ("size", "<u8"),
        ("link", "<u4"),
        ("info", "<u4"),
        ("addralign", "<u8"),
        ("entsize", "<u8"),
    ]
)
SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("shndx", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_RELA = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<u8")])
_DYNAMIC = np.dtype([("tag", "<u8"), ("value", "<u8")])
_PT_LOAD, SHT_SYMTAB, _SHT_RELA, _SHT_NOBITS, SHT_DYNSYM, _DT_NEEDED, _DT_SONAME = 1, 2, 4, 8, 11, 1, 14


class Symbol(NamedTuple):
    """A defined symbol: virtual address and size in bytes."""

    value: int
    size: int


class Elf:
    """An ELF file behind an open descriptor, which the caller closes.

    budget: bytes that may be read from the file in all; each read counts as a page at least. It is smaller for a small
    file, so that the work grows with the size. Every method raises ElfError for a malformed file or an exhausted
    budget, and OSError for a failing read.
    """

    def __init__(self, fd: int, budget: int = _BUDGET) -> None:
        self.file_size = os.fstat(fd).st_size
        self._fd, self._left = fd, min(budget, _READS_A_BYTE * self.file_size + _PIECE)
        head = self._bytes(0, _HEADER.itemsize)
        if head[:4] != b"\x7fELF":
            raise ElfError("not an ELF file")
        if head[4:6] != b"\x02\x01":
            raise ElfError("not a 64-bit little-endian ELF file")
        self._header = np.frombuffer(head, _HEADER)[0]
        self.machine = machine(int(self._header["machine"]))
        self._segments = self._table(
            "phoff", int(self._header["phnum"]), MAX_SEGMENTS, "phentsize", _SEGMENT, "program headers"
        )
        loads = self._segments[(self._segments["type"] == _PT_LOAD) & (self._segments["filesz"] > 0)]
        self._loads = loads[np.argsort(loads["vaddr"], kind="stable")]
        self._starts: list[int] = self._loads["vaddr"].tolist()
        self._spans: list[tuple[int, int]] = list(
            zip(self._loads["filesz"].tolist(), self._loads["offset"].tolist(), strict=True)
        )

    def segments(self, kind: int) -> np.ndarray:
        """Program headers of a kind, shape (n,)."""
        found: np.ndarray = self._segments[self._segments["type"] == kind]
        return found

    def _bytes(self, offset: int, n: int) -> bytes:
        """Exactly n bytes of the file."""
        if n < 0 or offset < 0 or offset + n > self.file_size:
            raise ElfError(f"{n} bytes at offset {offset} lie outside the file")
        cost = max(n, _PAGE)  # many small reads take time too
        if cost > self._left:
            raise ElfError("more to read than is allowed for one file")
        self._left -= cost
        parts = []
        while n:
            part = os.pread(self._fd, min(n, 1 << 30), offset)
            if not part:
                raise ElfError("truncated while it was read")
            parts.append(part)
            offset, n = offset + len(part), n - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _table(self, offset: str, count: int, most: int, entry: str, dtype: np.dtype[np.void], what: str) -> np.ndarray:
        if count == 0:
            return np.empty(0, dtype)
        if count > most or int(self._header[entry]) != dtype.itemsize:
            raise ElfError(f"odd {what}: {count} of {int(self._header[entry])} bytes")
        return np.frombuffer(self._bytes(int(self._header[offset]), count * dtype.itemsize), dtype)

    @cached_property
    def sections(self) -> np.ndarray:
        """Section headers, shape (n,); none if the file was stripped of them."""
        return self._table("shoff", int(self._header["shnum"]), MAX_SECTIONS, "shentsize", _SECTION, "section headers")

    @cached_property
    def _section_index(self) -> dict[bytes, int]:
        index = int(self._header["shstrndx"])
        if not 0 < index < len(self.sections):
            return {}
        names = self._bytes(int(self.sections[index]["offset"]), min(int(self.sections[index]["size"]), _PIECE))
        found: dict[bytes, int] = {}
        for i, at in enumerate(self.sections["name"].tolist()):
            found.setdefault(names[at : at + _MAX_NAME].split(b"\0", 1)[0], i)
        return found

    def section_header(self, name: str) -> np.void | None:
        """The header of the first section of that name."""
        index = self._section_index.get(name.encode())
        return None if index is None else self.sections[index]

    def section(self, name: str) -> bytes:
        """A section's content; empty if there is none or it takes no space in the file."""
        header = self.section_header(name)
        if header is None or header["type"] == _SHT_NOBITS:
            return b""
        return self._bytes(int(header["offset"]), int(header["size"]))

    def search(self, name: str, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        """The first match, at most 256 bytes long, of a pattern in a section, which is read in pieces."""
        header = self.section_header(name)
        if header is None or header["type"] == _SHT_NOBITS:
            return None
        offset, size = int(header["offset"]), int(header["size"])
        for at in range(0, size, _PIECE):
            found = pattern.search(self._bytes(offset + at, min(_PIECE + _MAX_NAME, size - at)))
            if found:
                return found
        return None

    def file_offset(self, vaddr: int) -> int:
        """The file offset of a virtual address."""
        offset = self._locate(vaddr, 1)
        if offset >= self.file_size:
            raise ElfError(f"address {vaddr:#x} lies outside the file")
        return offset

    def read(self, vaddr: int, n: int) -> bytes:
        """n bytes at a virtual address, as in the file (before relocation), all of one segment."""
        return self._bytes(self._locate(vaddr, n), n)

    def _locate(self, vaddr: int, n: int) -> int:
        index = bisect.bisect_right(self._starts, vaddr) - 1
        if index >= 0:
            inside, (size, offset) = vaddr - self._starts[index], self._spans[index]
            if inside + n <= size:
                return inside + offset
        raise ElfError(f"address {vaddr:#x} lies in no loaded segment")

    def rest(self, vaddr: int) -> int:
        """Bytes from an address to the end of its segment's file data; 0 outside."""
        index = bisect.bisect_right(self._starts, vaddr) - 1
        return max(self._starts[index] + self._spans[index][0] - vaddr, 0) if index >= 0 else 0

    def _pieces(self, header: np.void, dtype: np.dtype[np.void]) -> Iterator[np.ndarray]:
        """A section's entries, about 40,000 at a time."""
        step = _PIECE // dtype.itemsize
        offset, count = int(header["offset"]), int(header["size"]) // dtype.itemsize
        for at in range(0, count, step):
            n = min(step, count - at)
            yield np.frombuffer(self._bytes(offset + at * dtype.itemsize, n * dtype.itemsize), dtype)

    def _positions(self, header: np.void, names: Iterable[bytes]) -> dict[int, bytes]:
        """Positions of these names in a string table. A name may have several, as it can be the tail of another."""
        found: dict[int, bytes] = {}
        wanted = [name + b"\0" for name in names]
        offset, size = int(header["offset"]), int(header["size"])
        for at in range(0, size, _PIECE):
            piece = self._bytes(offset + at, min(_PIECE + _MAX_NAME, size - at))
            for name in wanted:
                hit = piece.find(name)
                while hit >= 0:
                    found[at + hit] = name[:-1]
                    if len(found) > MAX_CANDIDATES:
                        raise ElfError("a name occurs too often in the string table")
                    hit = piece.find(name, hit + 1)
        return found

    def symbols(self, names: Iterable[bytes]) -> dict[bytes, Symbol]:
        """The defined symbols of these names (each below 256 bytes), from .dynsym, else .symtab; missing ones are left
        out.
        """
        missing, found = set(names), dict[bytes, Symbol]()
        if not missing:
            return found
        for header, strings in self.symbol_tables(SHT_DYNSYM, SHT_SYMTAB):
            self._search(header, self._positions(strings, missing), found)
            missing -= found.keys()
            if not missing:
                break
        return found

    def symbol_tables(self, *kinds: int) -> Iterator[tuple[np.void, np.void]]:
        """(symbols, strings), as section headers, of the tables of these types."""
        for kind in kinds:
            for header in self.sections[self.sections["type"] == kind]:
                if int(header["link"]) >= len(self.sections):
                    raise ElfError("a symbol table without a string table")
                yield header, self.sections[int(header["link"])]

    def _search(self, header: np.void, positions: dict[int, bytes], found: dict[bytes, Symbol]) -> None:
        if not positions:
            return
        wanted = np.fromiter(positions, np.uint32, len(positions))
        for entries in self._pieces(header, SYMBOL):
            hits = np.isin(entries["name"], wanted) & (entries["shndx"] != 0) & (entries["value"] != 0)
            for name, _, _, _, value, size in entries[hits][:MAX_CANDIDATES].tolist():
                found.setdefault(positions[name], Symbol(value, size))

    def pointers(self, tables: list[tuple[int, int]]) -> list[np.ndarray]:
        """Tables of 8-byte pointers as the dynamic linker leaves them, before the load address is added.

        tables: (virtual address, count), count at most 4096 each. Returns uint64 arrays, shapes (count,). Pointers to
        symbols of other files are 0.
        """
        out = []
        for vaddr, count in tables:
            if not 0 < count <= 4096:
                raise ElfError("a pointer table of odd size")
            out.append(np.frombuffer(self.read(vaddr, 8 * count), "<u8").copy())
        for header in self.sections[(self.sections["type"] == _SHT_RELA) & (self.sections["flags"] & 2 != 0)]:
            for entries in self._pieces(header, _RELA):
                for (vaddr, count), values in zip(tables, out, strict=True):
                    inside = (entries["offset"] >= vaddr) & (entries["offset"] < vaddr + 8 * count)
                    for offset, kind, symbol, addend in entries[inside][:4096].tolist():
                        if kind == self.machine.relative:
                            values[(offset - vaddr) // 8] = addend
                        elif kind == self.machine.absolute:
                            base = self._symbol_value(int(header["link"]), symbol)
                            values[(offset - vaddr) // 8] = (base + addend) % (1 << 64) if base else 0
        return out

    def _symbol_value(self, table: int, index: int) -> int:
        if table >= len(self.sections):
            raise ElfError("relocations without a symbol table")
        header = self.sections[table]
        if (index + 1) * SYMBOL.itemsize > int(header["size"]):
            raise ElfError("a relocation against a symbol that is not there")
        entry = np.frombuffer(self._bytes(int(header["offset"]) + index * SYMBOL.itemsize, SYMBOL.itemsize), SYMBOL)[0]
        return int(entry["value"]) if entry["shndx"] else 0

    @cached_property
    def build_id(self) -> str:
        """The GNU build id in hexadecimal, empty if there is none."""
        header = self.section_header(".note.gnu.build-id")
        if header is None or not 16 < int(header["size"]) <= 128:
            return ""
        return self._bytes(int(header["offset"]), int(header["size"]))[16:].hex()

    @cached_property
    def soname(self) -> str:
        """DT_SONAME, empty if there is none."""
        return next(self._dynamic(_DT_SONAME), "")

    @cached_property
    def needed(self) -> list[str]:
        """DT_NEEDED, the libraries that this file requires."""
        return list(self._dynamic(_DT_NEEDED))

    def _dynamic(self, tag: int) -> Iterator[str]:
        """Strings of the dynamic section, at most MAX_NEEDED."""
        header = self.section_header(".dynamic")
        if header is None or header["type"] == _SHT_NOBITS or int(header["link"]) >= len(self.sections):
            return
        strings = self.sections[int(header["link"])]
        for entries in self._pieces(header, _DYNAMIC):
            for at in entries["value"][entries["tag"] == tag][:MAX_NEEDED].tolist():
                if at < int(strings["size"]):
                    text = self._bytes(int(strings["offset"]) + at, min(_MAX_NAME, int(strings["size"]) - at))
                    yield text.split(b"\0", 1)[0].decode("ascii", "replace")


def contains_32(fd: int, needles: Iterable[bytes]) -> bool:
    """Whether a 32-bit ELF file has all of these byte strings in its first ``_BUDGET`` bytes. Raises ElfError for any
    other file, OSError.
    """
    if os.pread(fd, 5, 0) != b"\x7fELF\x01":
        raise ElfError("not a 32-bit ELF file")
    missing = set(needles)
    for at in range(0, min(os.fstat(fd).st_size, _BUDGET), _PIECE):
        piece = os.pread(fd, _PIECE + _MAX_NAME, at)
        missing -= {needle for needle in missing if needle in piece}
        if not missing:
            return True
    return False
