"""What a hit of a probe costs on this machine, measured: a function of ours, of as few instructions as there can be, is
called with probes and without.
"""

from __future__ import annotations

import ctypes as ct
import mmap
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from agent.kernel.detach import close_aside
from agent.kernel.steps import Steps
from agent.limiters.reading import UNKNOWN
from agent.targets.attacher import Attacher

_CALLS, _ROUNDS = 32, 3
_PAGE = 4096
#: void call(long times, void *goroutine): as a Go program calls, with the goroutine in R14 and room for the argument
#: above the return address, a function that looks at its stack's size and returns. PUSHQ R14; MOVQ SI, R14; MOVQ SI,
#: AX; MOVQ DI, CX; PUSHQ AX; CALL +9; POPQ AX; DECQ CX; JNE -12; POPQ R14; RET; CMPQ SP, 16(R14); JBE +0; RET
_CODE = bytes.fromhex("4156 4989f6 4889f0 4889f9 50 e809000000 58 48ffc9 75f4 415e c3 493b6610 7600 c3")
_BEGIN, _END = _CODE.index(b"\x76\x00"), len(_CODE) - 1
#: One copy for each measurement, a page each.
_ALONE, _BOTH = _PAGE, 2 * _PAGE


@dataclass
class HitCost:
    """ns. both: of a decision that is probed at its begin and its return; alone: at its return only; within: what both
    take of the time between them, as it is measured.
    measured: else they are guesses.
    """

    both: float = 25_000.0
    alone: float = 15_000.0
    within: int = 0
    measured: bool = False
    tried: bool = False
    _within: list[int] = field(default_factory=list)

    def feed(self, records: np.ndarray) -> None:
        """Takes records of ``struct limiter_decision``, of which our own are those that are measured."""
        mine = records[(records["proc"]["pid"] == os.getpid()) & (records["duration_ns"] != UNKNOWN)]
        self._within += mine["duration_ns"].astype(np.int64).tolist()[: _CALLS * _ROUNDS - len(self._within)]
        if self._within:
            self.within = int(np.percentile(self._within, 10))  # rather too little than time that the decision took

    def measuring(self, helper: Attacher, begin: int, end: int, alone: int) -> Steps[None]:
        """Programs of a declared function. Takes some ms of its caller's thread. Raises OSError."""
        file = _file()
        try:
            with mmap.mmap(file, 3 * _PAGE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC) as code:
                calls = [ct.CFUNCTYPE(None, ct.c_long, ct.c_void_p)(_address(code) + at) for at in (_ALONE, _BOTH)]
                free = _timed(calls[0])
                links: list[int] = []
                try:
                    links += yield from helper.attaching(alone, file, [_ALONE + _END])
                    links += yield from helper.attaching(end, file, [_BOTH + _END])
                    links += yield from helper.attaching(begin, file, [_BOTH + _BEGIN])
                    at_end, at_both = map(_timed, calls)
                finally:
                    close_aside(links)
        finally:
            os.close(file)
        self.alone, self.both, self.measured = max(at_end - free, 100.0), max(at_both - free, 100.0), True


#: Of this process, which measures once.
COST = HitCost()


def _file() -> int:
    """An ELF file with the code in its second page and its third. Raises OSError."""
    file = os.memfd_create("tickscope-hit", os.MFD_CLOEXEC)
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    head += struct.pack("<IIQQQQQQ", 1, 5, _PAGE, _PAGE, _PAGE, 2 * _PAGE, 2 * _PAGE, _PAGE)
    os.write(file, head.ljust(_PAGE, b"\0") + 2 * _CODE.ljust(_PAGE, b"\0"))
    return file


def _address(code: mmap.mmap) -> int:
    """Where a mapping that cannot be written lies."""
    return int(np.frombuffer(code, np.uint8).ctypes.data)


def _timed(call: Callable[[int, int], None]) -> float:
    """ns a call, the best of some rounds."""
    room = ct.create_string_buffer(256)
    best = float("inf")
    for _ in range(_ROUNDS):
        start = time.perf_counter_ns()
        call(_CALLS, ct.addressof(room))
        best = min(best, (time.perf_counter_ns() - start) / _CALLS)
    return best
