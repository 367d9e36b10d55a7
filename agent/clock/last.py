"""The last reading of the clocks, kept in the store's directory. With it the next agent detects a step that happened
while no agent ran.

Only steps and leap seconds move REALTIME - BOOTTIME, so within one boot any difference is one of these.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections import deque
from collections.abc import Callable

from agent.clock.sample import Reading
from agent.common.ownfiles import CLOCK as NAME

_READING = struct.Struct("<16s6q")
_SUM = struct.Struct("<I")


class LastReading:
    """File ``NAME`` in the directory ``dir_fd`` (borrowed, not duplicated), overwritten in place. If the disk fails,
    the reading is not kept.

    run: runs a file operation in order, possibly later (``agent.store.writer.Writer.later``).
    """

    def __init__(
        self, dir_fd: int, boot_id: str, run: Callable[[Callable[[], None]], None] = lambda work: work()
    ) -> None:
        self._boot, self._run = bytes.fromhex(boot_id.replace("-", "")), run
        self._newest: deque[Reading] = deque(maxlen=1)
        self._fd = -1
        self.earlier: Reading | None = None  #: of an earlier agent in this boot
        with contextlib.suppress(OSError):
            self._fd = os.open(NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640, dir_fd=dir_fd)
            self.earlier = self._read()

    def _read(self) -> Reading | None:
        raw = os.pread(self._fd, _READING.size + _SUM.size + 1, 0)
        body, checksum = raw[: _READING.size], raw[_READING.size :]
        if checksum != _SUM.pack(zlib.crc32(body)) or not raw.startswith(self._boot):
            return None
        return Reading(*_READING.unpack(body)[1:])

    def keep(self, reading: Reading) -> None:
        self._newest.append(reading)
        self._run(self._write)

    def close(self) -> None:
        self._run(self._close)

    def _write(self) -> None:
        while self._newest and self._fd >= 0:
            body = _READING.pack(self._boot, *self._newest.pop())
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, body + _SUM.pack(zlib.crc32(body)), 0)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
