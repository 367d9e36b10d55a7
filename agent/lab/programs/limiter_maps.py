"""An API whose limiter maps memory for each decision, while another of its threads maps far more: both need the lock of
their address space.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import time

from agent.lab.program import Run
from agent.lab.programs.limiters import api, decide

_POPULATE = 0x8000
_libc = ctypes.CDLL(None)  # unlike the module mmap, it lets other threads run meanwhile
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def _map(size: int, flags: int = 0) -> None:
    at = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags, -1, 0)
    if at != ctypes.c_void_p(-1).value:
        _libc.munmap(at, size)


def serve(run: Run) -> None:
    def fill() -> None:
        while True:
            if run.settings["mb"]:
                _map(int(run.settings["mb"]) << 20, _POPULATE)
            time.sleep(0.02)

    threading.Thread(target=fill, daemon=True).start()

    def check() -> int:
        _map(mmap.PAGESIZE)
        return 1

    decide(run, check)


# They run as root, like those of till.py.
PROGRAMS = (api("api-maps", serve, root=True, mb=0),)
