"""Where a function of C, C++ or Rust is entered and left, as instructions: what is not certain is refused, since a
uprobe within an instruction corrupts its program. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent.binaries import gox86
from agent.binaries.elf import ElfError

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
            for at, (opcode, target) in gox86.instructions(code).items():
                self.starts.add(begin + at)
                if opcode in _FAR_RETURNS:
                    raise ElfError(f"the return at +{at:#x} is none that a compiler makes")
                if opcode in _NEAR_RETURNS:
                    self.returns.append(begin + at)
                if opcode == _INDIRECT and gox86.jumps(code, at, before):
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
