"""Processors of ELF files: what a file's machine number says of its code. Pure: bytes in, values out."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Protocol


class ElfError(Exception):
    """The file is not what it should be; the text says why."""


class Accessors(Protocol):
    """How compiled one-line functions read their fields, for finding the offsets of fields without debug symbols."""

    def returned_address(self, code: bytes, vaddr: int) -> int | None:
        """The address that a function at vaddr of the form ``return &table`` returns; None for another form."""

    def loads(self, code: bytes, wide: bool) -> set[int]:
        """Displacements of the loads, of 8 (wide) or 4 bytes, into the return register through the first argument or
        the return register.
        """


@dataclass(frozen=True)
class Machine:
    """One processor. number: e_machine; name: for people; breakpoint: what the kernel writes over the instruction at a
    uprobe; relative, absolute: numbers of the relocations that add the load address to an addend or a symbol;
    go_quantum: bytes of the shortest instruction, as Go's tables count; decodes: ``x86_code`` knows its instructions,
    so that returns can be found.
    """

    number: int
    name: str
    breakpoint: bytes
    relative: int
    absolute: int
    go_quantum: int
    decodes: bool
    accessors: Accessors


class _X86Accessors:
    def returned_address(self, code: bytes, vaddr: int) -> int | None:
        start = 4 if code.startswith(b"\xf3\x0f\x1e\xfa") else 0  # endbr64
        if code[start : start + 3] == b"\x48\x8d\x05" and len(code) >= start + 7:  # lea rax, [rip + x]
            return (vaddr + start + 7 + int(struct.unpack_from("<i", code, start + 3)[0])) % (1 << 64)
        if code[start : start + 1] == b"\xb8" and len(code) >= start + 5:  # mov eax, x
            return int(struct.unpack_from("<I", code, start + 1)[0])
        return None

    def loads(self, code: bytes, wide: bool) -> set[int]:
        prefix = b"\x48" if wide else b"(?<!\x48)"
        short = re.findall(prefix + rb"\x8b[\x40\x47](.)", code, re.S)
        long = re.findall(prefix + rb"\x8b[\x80\x87](..\0\0)", code, re.S)
        zero = re.findall(prefix + rb"\x8b\x07", code)
        found = {d[0] for d in short} | {struct.unpack("<I", d)[0] for d in long}
        return found or ({0} if zero else set())


class _ArmAccessors:
    def returned_address(self, code: bytes, vaddr: int) -> int | None:
        words = struct.unpack(f"<{len(code) // 4}I", code[: len(code) // 4 * 4])
        start = 1 if words[:1] == (0xD503245F,) else 0  # bti c
        if not words[start:] or words[start] & 0x9F00001F != 0x90000000:  # adrp x0, page; add x0, x0, ... until ret
            return None
        pages = (words[start] >> 5 & 0x7FFFF) << 2 | words[start] >> 29 & 3
        value = (vaddr + 4 * start & ~0xFFF) + (pages - ((pages & 1 << 20) << 1) << 12)
        for word in words[start + 1 :]:
            if word & 0xFF8003FF != 0x91000000:
                break
            value += (word >> 10 & 0xFFF) << (12 if word & 1 << 22 else 0)
        return int(value % (1 << 64))

    def loads(self, code: bytes, wide: bool) -> set[int]:
        words = struct.unpack(f"<{len(code) // 4}I", code[: len(code) // 4 * 4])
        opcode, scale = (0xF9400000, 8) if wide else (0xB9400000, 4)
        found = {(w >> 10 & 0xFFF) * scale for w in words if w & 0xFFC0001F == opcode and w >> 5 & 0x1F in (0, 19)}
        return found - {0} or found


class _NoAccessors:
    def returned_address(self, code: bytes, vaddr: int) -> int | None:
        return None

    def loads(self, code: bytes, wide: bool) -> set[int]:
        return set()


#: Numbers of machines and relocations: System V ABI supplements (elf.h: EM_*, R_X86_64_*, R_AARCH64_*).
X86_64 = Machine(62, "x86-64", b"\xcc", 8, 1, 1, True, _X86Accessors())
ARM64 = Machine(183, "arm64", struct.pack("<I", 0xD42000A0), 1027, 257, 4, False, _ArmAccessors())
_KNOWN = {one.number: one for one in (X86_64, ARM64)}
#: Folders of libraries by Debian's multiarch, and what the build of a program that can be probed is called by Go.
LIBRARY_FOLDERS = (b"x86_64-linux-gnu", b"aarch64-linux-gnu")
DECODED, DECODED_GO = X86_64.name, "GOARCH=amd64"


def machine(number: int) -> Machine:
    """By e_machine: one that is not known has no relocations, breakpoints or instructions that are known."""
    return _KNOWN.get(number) or Machine(number, f"machine {number}", b"", -1, -1, 4, False, _NoAccessors())
