"""A program on a pseudo-terminal, and what a terminal emulator (pyte) shows of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[1]
#: Of a synchronized update.
_BEGIN, _END = b"\x1b[?2026h", b"\x1b[?2026l"


class Program:
    """A context manager that ends it. argv: arguments of ``program``, or with "" a whole command. raw: all that it
    wrote.
    """

    def __init__(
        self, argv: Sequence[object], columns: int = 80, lines: int = 24, *, program: str = "tickscope", **env: str
    ) -> None:
        self._ours, theirs = os.openpty()
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self._set(theirs, columns, lines)
        drop = {"NO_COLOR", "COLUMNS", "LINES"}
        known: Mapping[str, str] = {k: v for k, v in os.environ.items() if k not in drop}
        python_path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, program, *map(str, argv)],
            env={**known, "TERM": "xterm-256color", "PYTHONPATH": python_path, "PYTHONIOENCODING": "utf-8", **env},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, IndexError):
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait()
        self.hang_up()

    @staticmethod
    def _set(fd: int, columns: int, lines: int) -> None:
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns: int, lines: int) -> None:
        self.screen.resize(lines, columns)
        self._set(self._ours, columns, lines)

    def hang_up(self) -> None:
        """The terminal closes."""
        with contextlib.suppress(OSError):
            os.close(self._ours)
        self._ours = -1

    @property
    def pid(self) -> int:
        """The program's own: the process that was started stands for its shell."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])

    def press(self, *keys: str) -> None:
        os.write(self._ours, "".join(keys).encode())

    def read(self, seconds: float) -> None:
        """Shows what it writes in that time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self._ours], [], [], left)[0]:
                return
            try:
                data = os.read(self._ours, 65536)
            except OSError:
                return
            if not data:
                return
            self.raw += data
            self._stream.feed(data)

    def until(self, seen: Callable[[str], object], seconds: float = 20.0) -> str:
        """The text on the screen once ``seen`` of it is true, and no part of a synchronized update is missing."""
        end = time.monotonic() + seconds * PATIENCE
        while not seen(text := self.text()) or self.raw.rfind(_BEGIN) > self.raw.rfind(_END):
            assert time.monotonic() < end, text
            self.read(0.1)
        return text

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def ended(self, seconds: float = 10.0) -> int:
        """The exit status."""
        end = time.monotonic() + seconds * PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < end, self.text()
            if self._ours >= 0:
                self.read(0.1)
            else:
                time.sleep(0.1)
        if self._ours >= 0:
            self.read(0.2)
        return self.process.wait()


#: Starts the program as a shell does: the terminal is that of a new session, and the program is the job in front.
_TAKE_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    os.tcsetpgrp(0, os.getpid())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTTOU})
    if not sys.argv[1]:
        os.execvp(sys.argv[2], sys.argv[2:])
    sys.argv = sys.argv[1:]
    from agent.cli.main import main
    main()
signal.signal(signal.SIGHUP, signal.SIG_IGN)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
os._exit(status if status >= 0 else 128 - status)
"""
