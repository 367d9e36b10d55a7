"""The agent's own lines on stderr: plain text, or a JSON object each. Where the journal reads them they begin with a
priority (sd-daemon(3)).

Whoever does not read them must not hold the agent up: a line that cannot be written at once is left out, and the next
one says how many were.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from agent.common.printable import printable

FORMATS = ("text", "json")
#: Priorities of syslog(3).
ERROR, WARNING, NOTICE, INFO = 3, 4, 5, 6
_LEVELS = {ERROR: "error", WARNING: "warning", NOTICE: "notice", INFO: "info"}
_STDERR = 2
_PIECE_BYTES = 4096  # PIPE_BUF: a pipe that select calls writable takes as much without blocking


def journal(environ: Mapping[str, str], fd: int = _STDERR) -> bool:
    """Whether the descriptor leads to the journal, as systemd.exec(5) has one find out: JOURNAL_STREAM is its
    device:inode.
    """
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class Log:
    """Lines to a descriptor. ``shown``: takes each line instead, where somebody draws on that terminal. left_out: lines
    that could not be written.
    """

    def __init__(self, form: str = "text", environ: Mapping[str, str] = os.environ, fd: int = _STDERR) -> None:
        self.form, self.left_out = form, 0
        self.wait_s: float | None = 0.0  # for a reader who is behind; None: without end
        self.shown: Callable[[str], None] | None = None
        self._fd, self._to_journal = fd, journal(environ, fd)

    def log_message(self, text: str, level: int = WARNING, **fields: object) -> None:
        """fields: members of the JSON object beside time, level and message; the text says them in words."""
        if self.shown is not None:
            self.shown(text)
            return
        if self.left_out:
            missing, self.left_out = self.left_out, 0
            lost = f"tickscope: {missing} lines before this one could not be written: nobody read them"
            if not self._write(self._lines(lost, WARNING, {"event": "lines_lost", "count": missing})):
                self.left_out = missing + 1
                return
        if not self._write(self._lines(text, level, fields)):
            self.left_out += 1

    def _lines(self, text: str, level: int, fields: Mapping[str, object]) -> bytes:
        if self.form == "json":
            known = {
                "time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}Z",
                "level": _LEVELS[level],
                "message": text.removeprefix("tickscope: "),
            }
            text = json.dumps({**known, **fields}, default=str)
        mark = f"<{level}>" if self._to_journal else ""
        return "".join(f"{mark}{line}\n" for line in map(printable, text.splitlines())).encode(
            errors="backslashreplace"
        )

    def _write(self, data: bytes) -> bool:
        with contextlib.suppress(OSError, ValueError):
            while data:
                if not select.select((), (self._fd,), (), self.wait_s)[1]:
                    return False
                data = data[os.write(self._fd, data[:_PIECE_BYTES]) :]
            return True
        return False


_log = Log()


def use(form: str) -> None:
    """From now on in this format, in this process and those that it forks."""
    _log.form = form


def show(instead: Callable[[str], None] | None) -> None:
    """Gives each line to ``instead`` from now on; None: to stderr again."""
    _log.shown = instead


def log_message(text: str, level: int = WARNING, **fields: object) -> None:
    """A line of the agent on stderr. That the terminal or the reader of a pipe has gone, or does not read, must not
    stop it.
    """
    _log.log_message(text, level, **fields)


def log_last_message(text: str) -> None:
    """As ``log_message``, for a verb that ends with this line: it waits until the reader has taken it."""
    _log.wait_s = None
    _log.log_message(text, ERROR)
