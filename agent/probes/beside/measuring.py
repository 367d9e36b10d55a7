"""Finds out, by calls of a thread of our own, what this kernel's thread flags say of a system call that blocks
again.
"""

from __future__ import annotations

import os
import threading
import time

import numpy as np


def measure_flag(tune: np.ndarray, write_nr: int) -> int:
    """Finds the kernel's TIF_NEED_FPU_LOAD bit: clear at the first block of a call, set at every later block of it.

    A preemption at the wrong moment hides the difference, so it is tried again. Bits below 8 are left out: they stand
    for pending work (rseq sets one of them), which some threads never have. 0 where no bit fits.
    """
    for _ in range(40):
        _block_both_ways(tune, write_nr)
        again, first = int(tune["flags_again"][0]), int(tune["flags_first"][0])
        candidates = again & ~first & 0xFFFFFF00 if again != 2**64 - 1 else 0
        if candidates:
            return candidates & -candidates
    return 0


def _block_both_ways(tune: np.ndarray, write_nr: int) -> None:
    """A thread sleeps twice (first blocks), then writes more to a pipe than it holds, which is emptied in steps (one
    call).
    """
    tune["flags_first"], tune["flags_again"], tune["flag_mask"] = 0, 2**64 - 1, 0
    tune["calibrate_nr"] = write_nr
    started, finished = threading.Event(), threading.Event()
    reader, writer = os.pipe()
    os.set_blocking(reader, False)

    def block() -> None:
        tune["calibrate_tid"] = threading.get_native_id()
        time.sleep(0.0002)
        time.sleep(0.0002)
        started.set()
        os.write(writer, b"\0" * 200_000)
        tune["calibrate_tid"] = 0
        finished.set()

    thread = threading.Thread(target=block, daemon=True)  # SIGINT may come meanwhile, and nobody then empties the pipe
    thread.start()
    started.wait()
    while not finished.wait(0.0002):
        try:
            os.read(reader, 16384)
        except BlockingIOError:
            continue
    thread.join()
    os.close(reader)
    os.close(writer)
