"""Takes probes away beside the loop: for each the kernel waits out a grace period, some 0.1 s, and walks all mappings of its file."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque

#: Hundreds of probes may take longer; the store is closed after this, and systemd waits for the agent 90 s in all.
FINISH_S = 10.0


class Detaching:
    """Descriptors that are being closed; ``done`` once they are."""

    def __init__(self, fds: list[int]) -> None:
        self.fds, self.done = fds, not fds


_waiting: deque[Detaching] = deque()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def close_aside(fds: list[int]) -> Detaching:
    """Closes them on the one thread that there is for it, which ends when there is nothing to close."""
    one = Detaching(fds)
    if fds:
        with _lock:
            _waiting.append(one)
            _run()
    return one


def finish(within_s: float = FINISH_S) -> None:
    """Waits until everything is closed, or that long: what is left goes on until the process ends, and holds up nothing that must be saved before."""
    end = time.monotonic() + within_s
    while (thread := _thread) is not None and (left_s := end - time.monotonic()) > 0:
        thread.join(left_s)


def _run() -> None:
    global _thread
    if _thread is None:
        _thread = threading.Thread(target=_close_all, name="detach")
        try:
            _thread.start()
        except RuntimeError:  # no more threads are allowed now: the next call tries again
            _thread = None


def _close_all() -> None:
    global _thread
    while True:
        with _lock:
            if not _waiting:
                _thread = None
                return
            one = _waiting.popleft()
        for fd in one.fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        one.done = True
