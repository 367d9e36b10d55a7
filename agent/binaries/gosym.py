"""Go binaries: toolchain, modules, and the entry, end and returns of named functions, stripped or not.

Uses only what the Go runtime needs and no strip removes: .go.buildinfo and the pclntab, which is found by its section
or its magic. Since Go 1.18 entries count from the start of the text. That address is read from moduledata: since Go
1.26 the table's header has none, and in a position-independent binary it is relocated.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from agent.arch import x86_code
from agent.arch.machine import DECODED
from agent.binaries import gobuild, gopcln
from agent.binaries.elf import Elf, ElfError
from agent.binaries.gobuild import BuildInfo

BUDGET = 512 << 20
_PIECE = 1 << 20
_MAX_FUNCTION, _MAX_PC_TABLE, _MAX_NAME = 1 << 18, 1 << 16, 512
#: Candidates of a function table, or of a pointer to it; functions per wanted name.
_MAX_TABLES, _MAX_POINTERS, _MAX_NAMESAKES, _MAX_HINTS = 64, 64, 256, 1 << 15
_WRITABLE, _BUILD_ALIGN = 2, 16
_SHF_ALLOC, _SHT_RELA = 2, 4
#: Words of moduledata that are searched for minpc, maxpc, text (20 to 22 from Go 1.16 to 1.26).
_MODULEDATA_WORDS = 64


@dataclass(frozen=True)
class GoFunction:
    """A Go function: full name, virtual addresses of its entry and of the next function's, and its record in the
    pclntab.
    """

    name: str
    entry: int
    end: int
    record: gopcln.Func


class GoBinary(Elf):
    """A Go executable behind an open descriptor, which the caller closes.

    Every method raises ElfError with the reason if the file is malformed or hostile, and OSError for a failing read.
    The bytes read are bounded. Memory is that of the function table (8 bytes per function) and a piece of 1 MB.
    """

    def __init__(self, fd: int, budget: int = BUDGET) -> None:
        super().__init__(fd, budget)

    @cached_property
    def build(self) -> BuildInfo | None:
        """The build information; None if there is none: not a Go binary, or its section was removed."""
        header = self.section_header(".go.buildinfo")
        if header is not None:
            return self._build_at(int(header["addr"]))
        if len(self.sections):
            return None
        for start, piece in self._search_area(
            _WRITABLE
        ):  # Go's linker puts it first in the data, the system's after .data.rel.ro
            at = piece.find(gobuild.MAGIC)
            while at >= 0 and (start + at) % _BUILD_ALIGN:
                at = piece.find(gobuild.MAGIC, at + 1)
            if at >= 0:
                return self._build_at(start + at)
        return None

    def _build_at(self, vaddr: int) -> BuildInfo | None:
        head = self.read(vaddr, gobuild.HEADER_SIZE)
        if not head.startswith(gobuild.MAGIC):
            return None
        if head[15] & gobuild.INLINE:
            start = vaddr + gobuild.HEADER_SIZE
            return gobuild.parse(*gobuild.inline_strings(self.read(start, min(gobuild.MAX_TEXT, self.rest(start)))))
        strings = []
        for pointer in self.pointers([(vaddr + 16, 2)])[0].tolist():
            at, size = self.pointers([(pointer, 2)])[0].tolist() if pointer else (0, 0)
            if size > gobuild.MAX_TEXT:
                raise ElfError("the Go build information is too long")
            strings.append(self.read(at, size) if size else b"")
        return gobuild.parse(strings[0], strings[1])

    @cached_property
    def _pclntab(self) -> tuple[int, gopcln.Header]:
        """(virtual address, header)."""
        for name in (".gopclntab", ".data.rel.ro.gopclntab"):
            section = self.section_header(name)
            if section is not None:
                return self._pclntab_at(int(section["addr"]))
        pattern = re.compile(b"|".join(re.escape(m) for m in gopcln.magics(self.machine.go_quantum)))
        left = _MAX_TABLES
        # a position-independent program from the system's linker (-linkmode=external) has it in .data.rel.ro
        for start, piece in self._search_area(_WRITABLE if len(self.sections) else 0):
            for match in pattern.finditer(piece):
                left -= 1
                if left < 0:
                    raise ElfError(f"more than {_MAX_TABLES} places look like a Go function table")
                try:
                    return self._pclntab_at(start + match.start())
                except ElfError:
                    continue  # these bytes also occur in programs that read such tables
        raise ElfError("no Go function table")

    def _pclntab_at(self, vaddr: int) -> tuple[int, gopcln.Header]:
        rest = self.rest(vaddr)
        return vaddr, gopcln.parse(self.read(vaddr, min(rest, gopcln.HEADER_SIZE)), rest)

    def _search_area(self, flags: int = 0) -> Iterator[tuple[int, bytes]]:
        """(address, bytes) of all segments with these flags, in overlapping pieces."""
        for one in self._loads[self._loads["flags"] & flags == flags]:
            start, size = int(one["vaddr"]), int(one["filesz"])
            for at in range(0, size, _PIECE):
                yield start + at, self.read(start + at, min(_PIECE + 8, size - at))

    @cached_property
    def _functab(self) -> np.ndarray:
        """Shape (functions, 2): entry, offset of the record from functab; the entry of the last row ends the text."""
        base, header = self._pclntab
        width = header.entry_size
        raw = self.read(base + header.functab, (2 * header.functions + 1) * width)
        words = np.frombuffer(raw, f"<u{width}")
        return np.append(words, words.dtype.type(0)).reshape(-1, 2)

    def names(self, names: Iterable[bytes], copies: Iterable[bytes] = ()) -> dict[int, str]:
        """Offset in the name table -> full name, of these names, also in GOPATH-style vendor folders, and of ``copies``
        (``(*Limiter).reserveN``) under any import path.

        A name without a function belongs to one that is always inlined.
        """
        wanted = [(name + b"\0", False) for name in names] + [(b"." + name + b"\0", True) for name in copies]
        found: dict[int, str] = {}
        for at, piece in self._name_table():
            for name, copied in wanted:  # one search per name is ten times faster than one for all
                match = piece.find(name)
                while match >= 0:
                    begin = piece.rfind(b"\0", max(0, match - _MAX_NAME), match) + 1
                    if begin == match or copied or piece[begin:match].endswith(b"/vendor/"):
                        found[at + begin] = piece[begin : match + len(name) - 1].decode("utf-8", "replace")
                        if len(found) > _MAX_NAMESAKES:
                            raise ElfError("a name occurs too often in the Go function table")
                    match = piece.find(name, match + 1)
        return found

    def _name_table(self) -> Iterator[tuple[int, bytes]]:
        """(offset, bytes) of the name table in overlapping pieces."""
        base, header = self._pclntab
        start, size = base + header.names, header.names_end - header.names
        for at in range(0, size, _PIECE):
            before = min(at, _MAX_NAME)
            yield at - before, self.read(start + at - before, min(_PIECE + before + _MAX_NAME, size - at + before))

    def packages(self, hint: re.Pattern[bytes], wanted: Callable[[bytes], bool], most: int) -> list[str]:
        """At most ``most`` packages of other modules, from function names that match ``hint`` and are ``wanted``."""
        seen, found, left = set[bytes](), list[str](), _MAX_HINTS
        for _, piece in self._name_table():
            for match in hint.finditer(piece):
                left -= 1
                if left < 0 or len(found) >= most:
                    return sorted(found)
                begin = piece.rfind(b"\0", max(0, match.start() - _MAX_NAME), match.start()) + 1
                package = gobuild.package_of(piece[begin : match.end() + _MAX_NAME].split(b"\0", 1)[0])
                if package not in seen:
                    seen.add(package)
                    if package and wanted(package):
                        found.append(package.decode("utf-8", "replace"))
        return sorted(found)

    def source_path(self, package: str) -> str:
        """The source folder of a package when it was compiled, which contains its version if modules were used; empty
        if not found.
        """
        base, header = self._pclntab
        start, size = base + header.names_end, header.pctab - header.names_end
        folder, _, name = package.rpartition("/")
        pattern = re.compile(
            rb"\0([^\0]{0,300}"
            + re.escape(folder.encode())
            + rb"(?:@[^\0/]{1,60})?/"
            + re.escape(name.encode())
            + rb"/)[^\0/]{1,60}\.go\0"
        )
        for at in range(0, max(size, 0), _PIECE):
            if match := pattern.search(self.read(start + at, min(_PIECE + _MAX_NAME, size - at))):
                return match[1].decode("utf-8", "replace")
        return ""

    def functions(self, positions: dict[int, str]) -> list[GoFunction]:
        """The functions of these ``names``; missing ones are left out.

        A name occurs twice if the binary has two vendored copies of the package.
        """
        if not positions:
            return []
        base, header = self._pclntab
        origin = base + (header.functab if header.relative or header.names else 0)  # as in _record
        wanted = np.fromiter(positions, np.uint32, len(positions))
        found = []
        indices = self._with_names(origin, wanted)
        if len(indices) > _MAX_NAMESAKES:
            raise ElfError("too many Go functions of one name")
        for index in indices:
            record = self._record(index)
            entry, end = self._bounds(index)
            if not 0 < end - entry <= _MAX_FUNCTION:
                raise ElfError("a Go function of odd size")
            found.append(GoFunction(positions[record.name], entry, end, record))
        return found

    def _record(self, index: int) -> gopcln.Func:
        base, header = self._pclntab
        at = base + (header.functab if header.relative or header.names else 0) + int(self._functab[index, 1])
        return gopcln.parse_func(self.read(at, 48), header.entry_size, header.first_lines)

    def _with_names(self, origin: int, wanted: np.ndarray) -> list[int]:
        """Indices of the functions whose record has one of these name offsets, found a megabyte of records
        at a time.
        """
        _, header = self._pclntab
        at = self._functab[:-1, 1].astype(np.int64) + header.entry_size
        if len(at) == 0 or (np.diff(at) < 0).any() or (at % 4).any():
            raise ElfError("the Go function table is out of order")
        found: list[int] = []
        first = 0
        while first < len(at):
            last = int(np.searchsorted(at, at[first] + _PIECE))
            words = np.frombuffer(self.read(origin + int(at[first]), int(at[last - 1] - at[first]) + 4), "<u4")
            found += (first + np.flatnonzero(np.isin(words[(at[first:last] - at[first]) // 4], wanted))).tolist()
            first = last
        return found

    def _bounds(self, index: int) -> tuple[int, int]:
        base, header = self._pclntab
        if header.relative:
            return self._module[0] + int(self._functab[index, 0]), self._module[0] + int(self._functab[index + 1, 0])
        words = self.pointers([(base + header.functab + 16 * index, 3)])[0]
        return int(words[0]), int(words[2])

    @cached_property
    def _module(self) -> list[int]:
        """Words of moduledata: the address from which function entries count, and the following ones. Found after minpc
        and maxpc, all consistent with functab.
        """
        first, last = int(self._functab[0, 0]), int(self._functab[-1, 0])
        for number, candidate in enumerate(self._moduledata_candidates()):
            if number >= _MAX_POINTERS:
                raise ElfError(f"more than {_MAX_POINTERS} places look like Go moduledata")
            count = min(_MODULEDATA_WORDS, self.rest(candidate) // 8)
            words = self.pointers([(candidate, count)])[0].tolist() if count else []
            for at, (low, high, text) in enumerate(zip(words, words[1:], words[2:], strict=False)):
                if text and low == text + first and high == text + last:
                    return list(words[at + 2 :])
        raise ElfError("no Go moduledata that agrees with the function table")

    def _moduledata_candidates(self) -> Iterator[int]:
        """Addresses of aligned words that point to the pclntab, as moduledata's first one does."""
        base, _ = self._pclntab
        needle = struct.pack("<Q", base % (1 << 64))  # a hostile file may have a larger address, which matches nothing
        for start, piece in self._search_area(_WRITABLE):
            at = piece.find(needle)
            while at >= 0:
                if (start + at) % 8 == 0:
                    yield start + at
                at = piece.find(needle, at + 1)
        relocations = self.sections[(self.sections["type"] == _SHT_RELA) & (self.sections["flags"] & _SHF_ALLOC != 0)]
        for section in relocations:
            dtype = np.dtype([("offset", "<u8"), ("info", "<u8"), ("addend", "<u8")])
            for entries in self._pieces(section, dtype):
                hits = (entries["addend"] == base) & (entries["info"] == self.machine.relative)
                yield from entries["offset"][hits].tolist()

    def pc_table(self, function: GoFunction, offset: int) -> dict[range, int]:
        """A pc table of a function (``record.pcsp`` ...), at most ten bytes for each of its own: ranges of offsets ->
        value; empty if it has none.
        """
        base, header = self._pclntab
        if offset == 0:
            return {}
        start = base + header.pctab + offset
        data = self.read(start, min(_MAX_PC_TABLE, 10 * (function.end - function.entry + 1), self.rest(start)))
        return gopcln.pc_values(data, header.quantum, function.end - function.entry)

    def lock(self, function: GoFunction) -> int | None:
        """Offset in the receiver of the mutex that a method locks first; None if its code does not show it, as without
        optimisation. Raises ElfError.
        """
        if not self.machine.decodes:
            return None
        return x86_code.lock_offset(self.read(function.entry, function.end - function.entry))

    def returns(self, function: GoFunction) -> list[int]:
        """Virtual addresses of the function's RET instructions, ascending, at least one.

        Raises ElfError unless it is certain that these are all exits and that each is the start of an instruction.
        """
        if not self.machine.decodes:
            raise ElfError(f"return probes in Go functions are made for {DECODED} only")
        stack = self.pc_table(function, function.record.pcsp)
        lines = self.pc_table(function, function.record.pcln)
        files = self.pc_table(function, function.record.pcfile)
        code = self.read(function.entry, function.end - function.entry)
        boundaries = {r.start for table in (stack, lines, files) for r in table}
        return [function.entry + at for at in x86_code.return_offsets(code, boundaries, stack)]
