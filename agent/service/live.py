"""The summary on a terminal: one line, written anew once a second. What the agent reports appears above it.
``tickscope top`` shows more.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agent import log
from agent.batch import Batch
from agent.common.printable import printable
from agent.tables import TABLES

if TYPE_CHECKING:
    from agent.service.loop import Loop
    from agent.service.status import Status

#: Lines that wait while the terminal takes nothing (Ctrl-S).
_WAITING = 100


class Live:
    """A sink that counts open findings, and draws."""

    name = "live"

    def __init__(self, loop: Loop, status: Status) -> None:
        self._loop, self._status = loop, status
        self._open: set[bytes] = set()
        self._rows = self._rate = 0
        self._messages: deque[str] = deque(maxlen=_WAITING)
        loop.sinks.append(self)
        if os.isatty(sys.stderr.fileno()):
            log.show(self._print)

    def offer(self, batch: Batch) -> None:
        if batch.table == "finding":
            for row in batch.rows:
                its_id = bytes(row["finding_id"])
                going = row["state"] == TABLES["finding"].code("state", "open")
                (self._open.add if going else self._open.discard)(its_id)

    def losses(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        log.show(None)
        self._draw("")

    def show(self, _: int) -> None:
        """Once a second: the rate of that second, and the line."""
        rows = sum(self._loop.totals.values())
        self._rate, self._rows = rows - self._rows, rows
        self.draw()

    def draw(self, _: int = 0) -> None:
        """The line, as long as the terminal is wide now."""
        self._draw(joined(self.words(), width() - 1))

    def words(self) -> list[str]:
        """What the line says, the most important first."""
        attached, degraded = self._status.counts()
        lost = self._status.lost()
        return [
            f"{len(self._open)} finding{'s' * (len(self._open) != 1)} open",
            f"{attached} probe families attached" + (f", {degraded} not (tickscope probes)" if degraded else ""),
            *([f"lost: {printable(lost)}"] if lost else []),
            f"{self._rate} rows/s",
            "Ctrl-C stops",
            "see `tickscope top`",
        ]

    def _print(self, text: str) -> None:
        self._messages.extend(map(printable, text.splitlines()))
        self.draw()

    def _draw(self, line: str) -> None:
        """Nothing where the terminal is stopped (Ctrl-S) or gone: the agent waits for neither."""
        with contextlib.suppress(OSError):
            if select.select((), (sys.stdout,), (), 0)[1]:
                above = "".join(f"{message}\n" for message in self._messages)
                text = f"\r\x1b[K{above}{line}"
                os.write(sys.stdout.fileno(), text.encode(sys.stdout.encoding, sys.stdout.errors or "strict"))
                self._messages.clear()


def width() -> int:
    """Columns of the terminal, now; COLUMNS where stdout is none."""
    try:
        found = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        found = 0
    return found or shutil.get_terminal_size((100, 40)).columns


def joined(words: Sequence[str], room: int) -> str:
    """The words, two spaces apart, as many as there is room for; an ellipsis says that there are more."""
    text = words[0][: max(room, 0)]
    for i, word in enumerate(words[1:], 2):
        more = 2 * (i < len(words))
        if len(text) + 2 + len(word) + more > room:
            return f"{text} …" if len(text) + 2 <= room else text
        text += f"  {word}"
    return text
