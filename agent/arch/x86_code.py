"""x86-64 machine code of compiled functions: where instructions begin, where a function returns or is left by a jump.
Instruction lengths are decoded just far enough to find every RET.

A uprobe replaces the first byte of an instruction; in the middle of one it would corrupt the program. So every byte of
the function is accounted for, an encoding that this table does not know is an error, and the decoded starts must agree
with two independent witnesses: every direct branch within the function lands on a start, and so does every boundary in
the Go compiler's own pc tables (``boundaries``). Any disagreement refuses the function.

Encodings: Intel SDM volume 2, chapter 2 and appendix A (64-bit mode); VEX and EVEX in 2.3 and 2.7.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterable, Mapping

from agent.arch.machine import ElfError

_PREFIXES = frozenset(b"\x66\x67\xf0\xf2\xf3\x2e\x36\x3e\x26\x64\x65")
_RETURNS = frozenset(b"\xc2\xc3\xca\xcb\xcf")
#: With its ModRM, of which bits 7 and 6 are not both set: an operand in memory.
_LOCK_CMPXCHG = re.compile(rb"\xf0[\x40-\x4f]?\x0f\xb1([\x00-\xbf])", re.S)

# What follows an opcode: m ModRM, b w d immediate bytes (1, 2, 4), z 4 bytes (2 with prefix 66), v 8 with REX.W else as
# z, a a 64-bit address, r a branch offset of 1 byte, R of 4, g like m with an immediate only for /0 and /1 (TEST).
_ONE: dict[int, str] = {}
_TWO: dict[int, str] = {}


def _fill(table: dict[int, str], form: str, *ranges: tuple[int, int] | int) -> None:
    for one in ranges:
        low, high = one if isinstance(one, tuple) else (one, one)
        for opcode in range(low, high + 1):
            table[opcode] = form


for _base in range(0x00, 0x40, 8):  # ADD OR ADC SBB AND SUB XOR CMP
    _fill(_ONE, "m", (_base, _base + 3))
    _fill(_ONE, "b", _base + 4)
    _fill(_ONE, "z", _base + 5)
_fill(_ONE, "", (0x50, 0x5F), (0x6C, 0x6F), (0x90, 0x99), (0x9B, 0x9F), (0xA4, 0xA7), (0xAA, 0xAF))
_fill(_ONE, "", 0xC3, 0xC9, 0xCB, 0xCC, 0xCF, 0xD7, (0xEC, 0xEF), 0xF1, (0xF4, 0xF5), (0xF8, 0xFD))
_fill(_ONE, "m", 0x63, (0x84, 0x8E), (0xD0, 0xD3), (0xD8, 0xDF), 0xFE, 0xFF)
_fill(_ONE, "mb", 0x6B, 0x80, 0x83, 0xC0, 0xC1, 0xC6)
_fill(_ONE, "mz", 0x69, 0x81, 0xC7)
_fill(_ONE, "g", 0xF6, 0xF7)
_fill(_ONE, "b", 0x6A, 0xA8, (0xB0, 0xB7), 0xCD, (0xE4, 0xE7))
_fill(_ONE, "z", 0x68, 0xA9)
_fill(_ONE, "v", (0xB8, 0xBF))
_fill(_ONE, "a", (0xA0, 0xA3))
_fill(_ONE, "w", 0xC2, 0xCA)
_fill(_ONE, "wb", 0xC8)
_fill(_ONE, "r", (0x70, 0x7F), (0xE0, 0xE3), 0xEB)
_fill(_ONE, "R", 0xE8, 0xE9)

_fill(_TWO, "m", (0x00, 0x03), 0x0D, (0x10, 0x23), (0x28, 0x2F), (0x40, 0x6F), (0x74, 0x76), (0x7C, 0x7F), (0x90, 0x9F))
_fill(_TWO, "m", 0xA3, 0xA5, 0xAB, (0xAD, 0xB9), (0xBB, 0xC1), 0xC3, 0xC7, (0xD0, 0xFF))
_fill(_TWO, "mb", (0x70, 0x73), 0xA4, 0xAC, 0xBA, 0xC2, (0xC4, 0xC6))
_fill(_TWO, "", (0x05, 0x09), 0x0B, (0x30, 0x35), 0x37, 0x77, (0xA0, 0xA2), (0xA8, 0xAA), (0xC8, 0xCF))
_fill(_TWO, "R", (0x80, 0x8F))
_VEX_IMMEDIATE = frozenset((0x70, 0x71, 0x72, 0x73, 0xC2, 0xC4, 0xC5, 0xC6))


def _modrm_size(code: bytes, at: int) -> int:
    """Bytes of ModRM, SIB and displacement at ``at``. Raises IndexError past the end."""
    modrm = code[at]
    mod, rm = modrm >> 6, modrm & 7
    if mod == 3:
        return 1
    size = 1 + (rm == 4)
    if mod == 0 and (rm == 5 or (rm == 4 and code[at + 1] & 7 == 5)):
        return size + 4
    return size + (0, 1, 4)[mod]


def _vex(code: bytes, at: int) -> int:
    """End of the VEX or EVEX instruction whose C4, C5 or 62 is at ``at``. Raises KeyError for an unknown map."""
    kind = code[at]
    table = 1 if kind == 0xC5 else code[at + 1] & (0x1F if kind == 0xC4 else 7)
    at += {0xC5: 2, 0xC4: 3, 0x62: 4}[kind]
    if table not in ((1, 2, 3, 5, 6) if kind == 0x62 else (1, 2, 3)):
        raise KeyError(table)
    opcode = code[at]
    if kind != 0x62 and table == 1 and opcode == 0x77:  # VZEROUPPER
        return at + 1
    return at + 1 + _modrm_size(code, at + 1) + (table == 3 or (table == 1 and opcode in _VEX_IMMEDIATE))


def _decode(code: bytes, at: int) -> tuple[int, int, int | None]:
    """(end, opcode, branch target) of the instruction at ``at``; the opcode of a longer map is 0x100 and up.

    Raises KeyError for an encoding that is not in the tables, IndexError where the code ends within it.
    """
    wide = small = short = False
    while code[at] in _PREFIXES:
        small |= code[at] == 0x66
        short |= code[at] == 0x67
        at += 1
    if code[at] in (0xC4, 0xC5, 0x62):
        return _vex(code, at), 0x400, None
    if code[at] & 0xF0 == 0x40:
        wide = bool(code[at] & 8)
        at += 1
    opcode, table, base = code[at], _ONE, 0
    at += 1
    if opcode == 0x0F:
        opcode, table, base = code[at], _TWO, 0x100
        at += 1
        if opcode in (0x38, 0x3A):
            return at + 1 + _modrm_size(code, at + 1) + (opcode == 0x3A), 0x200, None
    form = table[opcode]
    if short and form == "a":
        raise KeyError(opcode)  # no compiler makes one
    if small and not wide and form in ("r", "R"):
        raise KeyError(opcode)  # Intel and AMD read these differently
    for kind in form:
        if kind == "m":
            at += _modrm_size(code, at)
        elif kind == "g":
            has_immediate = code[at] & 0x30 == 0
            at += _modrm_size(code, at)
            at += has_immediate * (1 if opcode == 0xF6 else 2 if small and not wide else 4)
        elif kind in "rR":
            size = 1 if kind == "r" else 4
            offset = int.from_bytes(code[at : at + size], "little", signed=True)
            return at + size, base + opcode, at + size + offset
        else:
            long = 8 if kind == "v" and wide else 2 if small and not wide else 4
            at += {"b": 1, "w": 2, "a": 8}.get(kind, long)
    return at, base + opcode, None


def instructions(code: bytes) -> dict[int, tuple[int, int | None]]:
    """Offset -> (opcode, target of a direct branch or None) of each instruction of ``code``, in order.

    Raises ElfError where a byte sequence is not in the tables or the last instruction does not end where the code does.
    """
    found: dict[int, tuple[int, int | None]] = {}
    at = 0
    while at < len(code):
        try:
            end, opcode, target = _decode(code, at)
        except (KeyError, IndexError):
            raise ElfError(f"unknown instruction at +{at:#x}: {code[at : at + 8].hex(' ')}") from None
        if end > len(code):
            raise ElfError(f"the instruction at +{at:#x} does not end within the function")
        found[at] = (opcode, target)
        at = end
    return found


def jumps(code: bytes, at: int, before: int) -> bool:
    """Whether the instruction FF at ``at``, behind the one at ``before``, jumps to where a register or memory says; not
    where compilers make a switch of it: it says so (prefix 3E, notrack), or takes a word of a table, or has just added
    one to the table's address.
    """
    begin = at
    while code[at] in _PREFIXES:
        if code[at] == 0x3E:
            return False
        at += 1
    extended = code[at] & 0xF1 == 0x41
    at += code[at] & 0xF0 == 0x40
    modrm = code[at + 1]
    if code[at] != 0xFF or modrm >> 3 & 7 not in (4, 5):
        return False
    if modrm >> 6 == 3:
        return _added(code[before:begin]) != (modrm & 7 | extended << 3)
    return not (modrm == 0x24 and code[at + 2] & 0xC7 == 0xC5)  # FF 24: of words of 8 bytes, from an address alone


def _added(instruction: bytes) -> int | None:
    """The register that an ADD of 64-bit registers changes; None for anything else."""
    if len(instruction) != 3 or instruction[0] & 0xF8 != 0x48 or instruction[2] >> 6 != 3:
        return None
    rex, opcode, modrm = instruction
    return {0x01: modrm & 7 | (rex & 1) << 3, 0x03: modrm >> 3 & 7 | (rex & 4) << 1}.get(opcode)


def return_offsets(code: bytes, boundaries: Iterable[int] = (), stack: Mapping[range, int] | None = None) -> list[int]:
    """Offsets of the RET instructions of a function, ascending; at least one.

    code: the function's bytes, from its entry to the next function's. boundaries: offsets that the compiler's tables
    say are instruction starts. stack: ranges of offsets -> how far the stack pointer is from its value at entry. Raises
    ElfError, with the reason, unless every witness agrees that these are all the ways out and real instructions.
    """
    decoded = instructions(code)
    for offset in boundaries:
        if offset not in decoded and offset != len(code):
            raise ElfError(f"the decoded instructions disagree with the Go pc tables at +{offset:#x}")
    for at, (opcode, target) in decoded.items():
        if target is None or target in decoded:
            continue
        if 0 <= target < len(code):
            raise ElfError(f"the branch at +{at:#x} goes into the middle of an instruction")
        if opcode != 0xE8:
            raise ElfError(f"the function is left by a jump at +{at:#x}, which return probes miss")
    found = [at for at, (opcode, _) in decoded.items() if opcode in _RETURNS]
    ranges = sorted((r.start, r.stop, depth) for r, depth in (stack or {}).items())
    for at in found:
        index = bisect.bisect_left(ranges, (at + 1,)) - 1
        if (index >= 0 and at < ranges[index][1] and ranges[index][2]) or decoded[at][0] != 0xC3:
            raise ElfError(f"the return at +{at:#x} is not one that the Go compiler makes")
    if not found:
        raise ElfError("the function has no return")
    return found


def lock_offset(code: bytes) -> int | None:
    """The displacement of the first LOCK CMPXCHG of a function, by which Go's sync.Mutex is locked where that is
    inlined; None where there is none.

    Raises ElfError as ``instructions``.
    """
    starts = [*instructions(code), len(code)]
    for at, end in itertools.pairwise(starts):
        match = _LOCK_CMPXCHG.match(code[at:end])
        if match:
            modrm = match[1][0]
            rest = code[at + match.end() + (modrm & 7 == 4) : end]
            return int.from_bytes(rest, "little", signed=True)
    return None


#: What a Go function with a frame starts with (cmd/internal/obj/x86, stacksplit): CMPQ SP, 16(R14), or LEAQ -n(SP), R12
#: for a large one, and CMPQ R12, 16(R14).
_CHECKS = (b"\x49\x3b\x66\x10", b"\x4d\x3b\x66\x10")
_FRAME_LEA = (b"\x4c\x8d\x64\x24", b"\x4c\x8d\xa4\x24")


def begins_as_go(code: bytes) -> bool:
    """Whether a function begins as the Go compiler begins one with a frame."""
    return code.startswith((_CHECKS[0], *_FRAME_LEA))


def stack_check(code: bytes) -> int:
    """Offset of the conditional jump with which a function looks whether its stack is large enough: registers are there
    as at its begin, and the kernel carries out a jump by itself, where it has the processor step over other
    instructions (arch/x86/kernel/uprobes.c, branch_setup_xol_ops). 0 where it does not begin so. Raises ElfError as
    ``instructions``.
    """
    at = 0
    if code.startswith(_FRAME_LEA):
        at = 5 if code[2] == 0x64 else 8
    if code[at : at + 4] not in _CHECKS:
        return 0
    at += 4
    return at if code[at] == 0x76 or code[at : at + 2] == b"\x0f\x86" else 0


_NEAR_RETURNS, _FAR_RETURNS = frozenset(b"\xc2\xc3"), frozenset(b"\xca\xcb\xcf")
_CALL, _INDIRECT = 0xE8, 0xFF


class Body:
    """A function's code. parts: (address, bytes), the one with its first instruction first, then those that the
    compiler has moved elsewhere.

    starts: addresses of all instructions; returns: of those that return; leaves: of jumps out of it, behind which
    another function returns for it. Raises ElfError where a sequence of bytes is no instruction that is known, or a
    branch goes into the middle of one.
    """

    def __init__(self, parts: Iterable[tuple[int, bytes]]) -> None:
        parts = list(parts)
        self._turns = set[int]()
        self._targets = set[int]()
        self.starts, self.returns, self.leaves = set[int](), list[int](), list[int]()
        targets = list[tuple[int, int, int]]()
        for begin, code in parts:
            before = 0
            for at, (opcode, target) in instructions(code).items():
                self.starts.add(begin + at)
                if opcode in _FAR_RETURNS:
                    raise ElfError(f"the return at +{at:#x} is none that a compiler makes")
                if opcode in _NEAR_RETURNS:
                    self.returns.append(begin + at)
                if opcode == _INDIRECT and jumps(code, at, before):
                    self.leaves.append(begin + at)
                before = at
                if opcode == _INDIRECT or target is not None:
                    self._turns.add(begin + at)
                if target is not None:
                    targets.append((begin + at, begin + target, opcode))
        self._targets = {target for _, target, _ in targets}
        for at, target, opcode in targets:
            if target in self.starts:
                continue
            if any(begin <= target < begin + len(code) for begin, code in parts):
                raise ElfError(f"the branch at {at:#x} goes into the middle of an instruction")
            if opcode != _CALL:
                self.leaves.append(at)

    def called_before(self, begin: int, at: int) -> bool:
        """Whether something is called or branched to between the first instruction and another one, or a branch leads
        there.
        """
        return any(begin <= turn < at for turn in self._turns) or any(begin < target <= at for target in self._targets)
