"""The beginning and end of functions by .eh_frame, which compilers write for C, C++ and Rust and no strip removes.
Layout: Linux Standard Base, core, 10.6 and 10.7.
"""

from __future__ import annotations

import struct

import numpy as np

from agent.binaries.elf import Elf, ElfError

_PT_GNU_EH_FRAME = 0x6474E550
#: .eh_frame_hdr: version, the pointer relative to itself, a count of 4 bytes, a table of pairs of 4 signed bytes
#: relative to the header. All linkers write it so.
_HEAD = b"\x01\x1b\x03\x3b"
#: pc_begin of an entry: 4 signed bytes, relative to itself.
_RELATIVE = 0x1B
_MOST_ENTRIES, _MOST_CIE = 1 << 22, 64


def function_at(elf: Elf, vaddr: int) -> tuple[int, int] | None:
    """(address, bytes) of the function that contains an address; None if the tables have none. Raises ElfError for
    tables of another kind.
    """
    header = next((one for one in elf.segments(_PT_GNU_EH_FRAME)), None)
    if header is None:
        return None
    at = int(header["vaddr"])
    head = elf.read(at, 12)
    count = struct.unpack_from("<I", head, 8)[0]
    if head[:4] != _HEAD or count > _MOST_ENTRIES:
        raise ElfError("its unwind table is of a kind that is not known")
    table = np.frombuffer(elf.read(at + 12, 8 * count), "<i4").reshape(-1, 2)
    index = int(np.searchsorted(table[:, 0], vaddr - at, "right")) - 1
    if index < 0:
        return None
    begin, size = _entry(elf, at + int(table[index, 1]))
    if begin != at + int(table[index, 0]):
        raise ElfError("its unwind table disagrees with itself")
    return (begin, size) if begin <= vaddr < begin + size else None


def _entry(elf: Elf, at: int) -> tuple[int, int]:
    length, back, begin, size = struct.unpack("<IIiI", elf.read(at, 16))
    if not 12 <= length < 0xFFFFFFF0 or _encoding(elf, at + 4 - back) != _RELATIVE:
        raise ElfError("an entry of its unwind table is of a kind that is not known")
    return at + 8 + begin, size


def _encoding(elf: Elf, at: int) -> int:
    """The encoding of addresses in the entries of a CIE."""
    raw = elf.read(at, min(_MOST_CIE, elf.rest(at)))
    text, _, rest = raw[9:].partition(b"\0")
    if (
        raw[8:9] != b"\x01" or not text.startswith(b"z") or b"S" in text
    ):  # S, of a signal's frame: it begins before the first instruction
        raise ElfError("an entry of its unwind table is of a kind that is not known")
    at = 0
    for _ in range(4):  # code and data alignment, return register, augmentation length: LEB128
        while rest[at] & 0x80:
            at += 1
        at += 1
    for letter in text[1:].decode("ascii", "replace"):
        if letter == "R":
            return rest[at]
        if letter == "P":  # its encoding and a pointer, 4 bytes in all but odd files
            if rest[at] & 0x0F not in (0x03, 0x0B):
                break
            at += 5
        elif letter == "L":
            at += 1
        else:
            break
    raise ElfError("an entry of its unwind table is of a kind that is not known")
