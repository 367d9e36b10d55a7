"""The sleeping threads of a process, and the kernel function in which each sleeps. Reads /proc entries that other users
may not read, so the helper runs it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import islice

#: Threads that are read.
THREADS = 256


def asleep(pid: int, only: str = "") -> bytes:
    """Lines ``tid state call function``, with - for unknown. only: the number of one thread. Raises OSError if there is
    no such process.
    """
    lines = []
    with os.scandir(f"/proc/{pid}/task") as threads:
        for name in [only] if only else [thread.name for thread in islice(threads, THREADS)]:
            path = f"/proc/{pid}/task/{name}"
            with suppress(OSError):  # it has ended
                state = _text(f"{path}/stat").rpartition(b")")[2].split()[0]
                if state in (b"S", b"D"):
                    call = (_text(f"{path}/syscall").split() or [b"-"])[0]
                    lines.append(b" ".join([name.encode(), state, call, _text(f"{path}/wchan") or b"-"]))
    return b"\n".join(lines)


def _text(path: str) -> bytes:
    with suppress(PermissionError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, 4096)
        finally:
            os.close(fd)
    return b""
