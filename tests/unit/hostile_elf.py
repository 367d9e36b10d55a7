"""ELF files that are made to take long: each was seen to take minutes of whoever searched it without a bound."""

from __future__ import annotations

import struct

from agent.binaries.gobuild import INLINE, MAGIC
from agent.binaries.gopcln import magics

_BASE = 0x400000


def elf(data: bytes, segments: list[tuple[int, int, int]] = [], flags: int = 7) -> bytes:  # noqa: B006
    """A program without section headers: one segment of ``data``, after others given as (address, offset, size)."""
    count = len(segments) + 1
    start = -(-(64 + 56 * count) // 4096) * 4096
    headers = [
        struct.pack("<IIQQQQQQ", 1, flags, offset, vaddr, vaddr, size, size, 4096) for vaddr, offset, size in segments
    ]
    headers.append(struct.pack("<IIQQQQQQ", 1, flags, start, _BASE, _BASE, len(data), len(data), 4096))
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 2, 62, 1, _BASE, 64, 0, 0, 64, 56, count, 64, 0, 0
    )
    return (head + b"".join(headers)).ljust(start, b"\0") + data


def note() -> bytes:
    """Build information of go1.22 without modules."""
    return (MAGIC + bytes((8, INLINE))).ljust(32, b"\0") + b"\x06go1.22\0"


def many_magics() -> bytes:
    """500 empty segments in front, and 120,000 function tables that point outside."""
    one = magics(1)[0]
    return elf(note().ljust(64, b"\0") + one * 120_000, [(8 * i, 0, 0) for i in range(500)])


def pclntab(name: bytes, code_size: int, at: int) -> bytes:
    """A function table of Go 1.20's format with one function of this name and size; at: its address."""
    del at
    names = b"\0" + name + b"\0"
    header = 72
    names_at, pctab_at = header, header + len(names)
    functab_at = -(-(pctab_at + 16) // 8) * 8
    words = (1, 0, 0, names_at, pctab_at, pctab_at, pctab_at, functab_at)
    table = struct.pack("<I4B8Q", 0xFFFFFFF1, 0, 0, 1, 8, *words) + names
    table = table.ljust(functab_at, b"\0") + struct.pack("<3I", 0, 16, code_size)
    return table.ljust(functab_at + 16, b"\0") + struct.pack("<8I", 0, 1, 0, 0, 0, 0, 0, 0) + bytes(64)


def many_pointers() -> bytes:
    """A table that is right, and 100,000 words that point to it as moduledata does, none of which is."""
    head = note().ljust(64, b"\0")
    table = pclntab(b"golang.org/x/time/rate.(*Limiter).reserveN", 64, _BASE + 64)
    return elf(head + table.ljust(4096, b"\0") + struct.pack("<Q", _BASE + 64) * 100_000)


def many_returns(size: int = 1 << 18) -> bytes:
    """A function of so many RET instructions."""
    head = note().ljust(64, b"\0")
    table = pclntab(b"golang.org/x/time/rate.(*Limiter).reserveN", size, _BASE + 64).ljust(4096, b"\0")
    code_at = _BASE + 64 + len(table) + 64
    moduledata = struct.pack("<Q", _BASE + 64) + struct.pack("<3Q", code_at, code_at + size, code_at)
    return elf(head + table + moduledata.ljust(64, b"\0") + b"\x49\x3b\x66\x10" + b"\xc3" * (size - 4) + bytes(64))
