"""The outage file: losses of a store that cannot be written. Its space is reserved in advance, so it works on a full
disk.

``NAME`` is overwritten in place. A query shows its losses as rows of ``loss`` until the store has them. If the agent
ended before that, the next agent writes them.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, field

from agent.batch import Batch, Loss, losses
from agent.common.ownfiles import OUTAGE as NAME

#: Space for a row per table, and spare.
_ROOM = 16 << 10
_TRIES = 5

#: Number of dropped rows, earliest and latest time (CLOCK_BOOTTIME ns).
Lost = tuple[int, int, int]


@dataclass
class Outage:
    """since_ns: when writing first failed, CLOCK_BOOTTIME of boot_id. why: the reason. waiting: rows held in memory.
    dropped: by table.
    """

    boot_id: str
    host: str
    pid: int
    since_ns: int
    why: str
    waiting: int = 0
    dropped: dict[str, Lost] = field(default_factory=dict)

    def rows(self) -> Batch | None:
        """``loss`` rows of what was dropped."""
        return losses("store", *(Loss(table, *lost) for table, lost in self.dropped.items())) if self.dropped else None


class OutageFile:
    """The writer's side. If even this write fails, only ``status`` shows the outage."""

    def __init__(self, dir_fd: int) -> None:
        self.left = read(dir_fd)  #: from an earlier agent
        self._fd, self._outage_file = -1, self.left is not None
        with contextlib.suppress(OSError):
            self._fd = os.open(NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640, dir_fd=dir_fd)
            if os.fstat(self._fd).st_size < _ROOM:
                os.pwrite(self._fd, b" " * _ROOM, 0)

    def write(self, outage: Outage) -> None:
        self._outage_file = True
        self._write(json.dumps(asdict(outage)).encode())

    def clear(self) -> None:
        """Clears the file once the store has all losses."""
        if self._outage_file:
            self._outage_file = False
            self._write(b"")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, text: bytes) -> None:
        if self._fd >= 0 and len(text) <= _ROOM:
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, text.ljust(_ROOM), 0)


def read(dir_fd: int) -> Outage | None:
    """The file's content; None if it is empty or cannot be read."""
    for _ in range(_TRIES):  # it may be written meanwhile
        try:
            fd = os.open(NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=dir_fd)
        except OSError:
            return None
        with open(fd, "rb") as file:
            text = file.read(_ROOM).strip(b" \0")
        if not text:
            return None
        try:
            doc = json.loads(text)
            dropped = {str(t): (int(n), int(start), int(end)) for t, (n, start, end) in doc["dropped"].items()}
            return Outage(
                str(doc["boot_id"]),
                str(doc["host"]),
                int(doc["pid"]),
                int(doc["since_ns"]),
                str(doc["why"]),
                int(doc["waiting"]),
                dropped,
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
    return None
