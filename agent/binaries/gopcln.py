"""The formats of Go's pclntab (functions, names, pc tables). Pure: bytes in, values out.

Layouts: runtime/symtab.go and internal/abi/symtab.go of Go 1.2, 1.16, 1.18 and 1.20; "Go 1.2 Runtime Symbol Table
Information".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from agent.binaries.elf import ElfError

HEADER_SIZE = 72
_GO12, _GO116, _GO118, _GO120 = 0xFFFFFFFB, 0xFFFFFFFA, 0xFFFFFFF0, 0xFFFFFFF1
_MAX_FUNCTIONS = 1 << 22


@dataclass(frozen=True)
class Header:
    """The parts of a pclntab, as offsets from its start. relative: function entries count from the start of the text.

    units, files: the tables that map a file's number to its name, 0 before Go 1.16. first_lines: a _func has its first
    line (Go 1.20).
    """

    relative: bool
    quantum: int
    functions: int
    names: int
    names_end: int
    pctab: int
    functab: int
    units: int = 0
    files: int = 0
    first_lines: bool = False

    @property
    def entry_size(self) -> int:
        """Bytes of a function's entry in functab and in _func, and of the offset after it in functab."""
        return 4 if self.relative else 8


def magics(quantum: int) -> list[bytes]:
    """The first eight bytes of every format for 64-bit machines with this instruction alignment."""
    return [struct.pack("<I4B", magic, 0, 0, quantum, 8) for magic in (_GO120, _GO118, _GO116, _GO12)]


def parse(data: bytes, size: int) -> Header:
    """Parses the header at the start of ``data``; size: the maximal size of the table.

    Raises ElfError if it is invalid or points outside.
    """
    if len(data) < HEADER_SIZE:
        raise ElfError("the Go function table is cut off")
    magic, zero, quantum, pointer = struct.unpack_from("<IHBB", data)
    words = struct.unpack_from("<8Q", data, 8)
    if zero or quantum not in (1, 4) or pointer != 8:
        raise ElfError("not a Go function table for a 64-bit machine")
    if magic == _GO12:
        header = Header(False, quantum, words[0], 0, size, 0, 16)
    elif magic == _GO116:
        header = Header(False, quantum, words[0], words[2], words[3], words[5], words[6], words[3], words[4])
    elif magic in (_GO118, _GO120):
        newest = magic == _GO120
        header = Header(True, quantum, words[0], words[3], words[4], words[6], words[7], words[4], words[5], newest)
    else:
        raise ElfError(f"unknown format of the Go function table: {magic:#x}")
    ends = (
        header.names,
        header.names_end,
        header.units,
        header.files,
        header.pctab,
        header.functab + (2 * header.functions + 1) * header.entry_size,
    )
    if not 0 < header.functions < _MAX_FUNCTIONS or max(ends) > size or header.names > header.names_end:
        raise ElfError("the Go function table points outside itself")
    return header


class Func(NamedTuple):
    """Parts of a _func: the offset of its name, those of its pc tables in pctab (0: none), the bytes of its arguments,
    the number of pcdata and funcdata tables and their offset, and where its file names begin in the units' table.
    """

    name: int
    pcsp: int
    pcfile: int
    pcln: int
    args: int = 0
    pcdata: int = 0
    funcdata: int = 0
    tables: int = 0
    unit: int = 0


def parse_func(data: bytes, entry_size: int, first_lines: bool = False) -> Func:
    """Parses a _func. Raises ElfError if it is cut off."""
    if len(data) < entry_size + 40:
        raise ElfError("a Go function record is cut off")
    name, args, _, pcsp, pcfile, pcln, pcdata, unit = struct.unpack_from("<8I", data, entry_size)
    flags = entry_size + (36 if first_lines else 32)
    return Func(name, pcsp, pcfile, pcln, args, pcdata, data[flags + 3], flags + 4, unit)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 35:
        byte = data[at]
        at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            return value, at
    raise ElfError("a Go pc table is cut off")


def pc_values(data: bytes, quantum: int, size: int) -> dict[range, int]:
    """Decodes the pc table at the start of ``data``: ranges of offsets in the function -> value, in order.

    size: the function's, where the table must end. Raises ElfError if it is cut off or runs past.
    """
    found: dict[range, int] = {}
    value, pc, at = -1, 0, 0
    while True:
        delta, at = _varint(data, at)
        if delta == 0 and pc:
            return found
        value += -(delta + 1 >> 1) if delta & 1 else delta >> 1
        step, at = _varint(data, at)
        if step == 0 or pc + step * quantum > size:
            raise ElfError("a Go pc table runs past its function")
        found[range(pc, pc + step * quantum)] = value
        pc += step * quantum
