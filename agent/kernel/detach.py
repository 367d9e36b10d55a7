"""Detaches probes outside of the loop: for each, the kernel waits for a grace period of about 0.1 s and walks all
mappings of its file.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque

#: Limit for the end: hundreds of probes may take longer, the store is closed after this, and systemd waits 90 s in all.
FINISH_S = 10.0
#: Threads: a program that is profiled for a moment must not wait for other probes.
_MOST = 4


class Detaching:
    """Descriptors that are being closed; ``done`` once they are."""

    def __init__(self, fds: list[int]) -> None:
        self.fds, self._left = fds, len(fds)

    @property
    def done(self) -> bool:
        return not self._left


_waiting: deque[tuple[Detaching, int]] = deque()
_lock = threading.Lock()
_threads: set[threading.Thread] = set()


def close_aside(fds: list[int]) -> Detaching:
    """Closes the descriptors on threads that end when there is nothing to close."""
    one = Detaching(fds)
    if fds:
        with _lock:
            _waiting.extend((one, fd) for fd in fds)
            _run()
    return one


def finish(within_s: float = FINISH_S) -> None:
    """Waits until everything is closed, or for ``within_s``. The rest goes on until the process ends, and does not
    delay saving.
    """
    end = time.monotonic() + within_s
    while (threads := list(_threads)) and (left_s := end - time.monotonic()) > 0:
        threads[0].join(left_s)


def _run() -> None:
    for _ in range(min(_MOST - len(_threads), len(_waiting))):
        thread = threading.Thread(target=_close_all, name="detach")
        try:
            thread.start()
        except RuntimeError:  # no thread can be started now: the next call tries again
            return
        _threads.add(thread)


def _close_all() -> None:
    while True:
        with _lock:
            if not _waiting:
                _threads.discard(threading.current_thread())
                return
            one, fd = _waiting.popleft()
        with contextlib.suppress(OSError):
            os.close(fd)
        with _lock:
            one._left -= 1
