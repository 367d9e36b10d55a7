"""What is usual at each hour of the day, kept in the store's directory: an agent that is started again goes on with it,
until the host is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from agent.common.ownfiles import HOURS as NAME

if TYPE_CHECKING:
    from agent.batch import Batch
    from agent.correlate.correlator import Correlator

_MOST = 4 << 20
_EVERY_NS = 600 * 10**9


class HoursStore:
    """``NAME`` in the directory ``dir_fd`` (borrowed), overwritten every ten minutes and at the end. A disk that fails
    only makes it forget.

    run: as for ``agent.clock.last.LastReading``.
    """

    name = "kept hours"

    def __init__(
        self,
        correlator: Correlator,
        dir_fd: int,
        boot_id: str,
        run: Callable[[Callable[[], None]], None] = lambda work: work(),
    ) -> None:
        self._watch, self._boot, self._run = correlator.hours, bytes.fromhex(boot_id.replace("-", "")), run
        self._kept_ns, self._fd = 0, -1
        with contextlib.suppress(OSError):
            self._fd = os.open(NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640, dir_fd=dir_fd)
            raw = os.pread(self._fd, _MOST, 0)
            if raw.startswith(self._boot):
                self._watch.recall(raw[len(self._boot) :])

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """No rows: a source for its turns."""
        self._kept_ns = self._kept_ns or now_ns
        if now_ns - self._kept_ns >= _EVERY_NS:
            self._keep()
            self._kept_ns = now_ns
        return ()

    def close(self) -> None:
        self._keep()
        self._run(self._close)

    def _keep(self) -> None:
        raw = self._boot + self._watch.remember()
        self._run(lambda: self._write(raw))

    def _write(self, raw: bytes) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, raw, 0)
                os.ftruncate(self._fd, len(raw))

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
