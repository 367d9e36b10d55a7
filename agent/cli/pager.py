"""A pager between a command and its terminal, as git and journalctl have it.

Not ``click.echo_via_pager``: it takes a text or a generator, but rows and notes are printed as they come. The pager is
started by the first byte of output, so that a command that prints nothing, or takes the screen itself, starts none.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

#: For ``less``, where the environment does not say otherwise: end if all is on the screen, show colours, leave the
#: output there, do not wrap lines; start no shell or editor, since the command may run with more rights than its user.
_DEFAULTS = {"LESS": "FRSX", "LESSSECURE": "1"}


@contextlib.contextmanager
def paged(wanted: bool = True) -> Iterator[None]:
    """Shows what is written to stdout and stderr with $PAGER, or ``less``. If stdin or stdout is no terminal, or the
    terminal is dumb, or PAGER is empty or ``cat``, or there is no ``less``, it changes nothing.
    """
    command = _command() if wanted and _on_terminal() else []
    if not command:
        yield
        return
    pager, before = _Pager(command), (sys.stdout, sys.stderr)
    sys.stdout = _through(pager, sys.stdout, starts=True)
    if sys.stderr.isatty():
        sys.stderr = _through(pager, sys.stderr, starts=False)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BrokenPipeError):
                stream.flush()
        pager.close()
        sys.stdout, sys.stderr = before


def _on_terminal() -> bool:
    from agent.cli.output import knows_escapes

    there = None not in (sys.stdin, sys.stdout, sys.stderr)
    return there and sys.stdin.isatty() and sys.stdout.isatty() and knows_escapes()


def _command() -> list[str]:
    """The pager and its arguments; empty if there is to be none."""
    from agent.cli.output import note

    given = os.environ.get("PAGER")
    try:
        words = shlex.split("less" if given is None else given)
    except ValueError as error:
        note(f"note: no pager: cannot read PAGER: {error}")
        return []
    if words in ([], ["cat"]):
        return []
    if shutil.which(words[0]) is None:
        if given is not None:
            note(f"note: no pager: PAGER is {given!r}, and there is no program {words[0]!r}")
        return []
    return words


class _Pager:
    """The pager's process, once it was started. fd: its input; None before the start, and after its end."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._before: Any = None
        self.fd: int | None = None

    @property
    def gone(self) -> bool:
        """Whether the user left it before the end of the output."""
        return self._process is not None and self.fd is None

    def start(self) -> None:
        if self._process is None:
            env = {**_DEFAULTS, **os.environ}
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, env=env)
            assert self._process.stdin is not None
            self.fd = self._process.stdin.fileno()
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
                # Ctrl-C ends the command, which then waits for the pager: both would read the keyboard otherwise.
                self._before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def left(self) -> None:
        """Nobody reads its input any more."""
        self.fd = None

    def close(self) -> None:
        """Waits until the user leaves it. Ctrl-C is the pager's meanwhile."""
        if self._process is None:
            return
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self.fd = None
        signal.signal(signal.SIGINT, before if self._before is None else self._before)


class _Output(io.RawIOBase):
    """A stream of the command: goes to the terminal before the pager's start, and then to the pager. starts: its first
    byte starts the pager. fd: of the terminal.
    """

    def __init__(self, pager: _Pager, fd: int, *, starts: bool) -> None:
        self._pager, self._fd, self._starts = pager, fd, starts

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd if self._pager.fd is None else self._pager.fd

    def write(self, data: ReadableBuffer) -> int:
        if self._starts:
            self._pager.start()
        if self._starts and self._pager.gone:
            return memoryview(data).nbytes  # nobody reads it
        try:
            return os.write(self.fileno(), data)
        except BrokenPipeError:
            self._pager.left()
            if self._starts:
                raise
            return os.write(self._fd, data)


def _through(pager: _Pager, stream: TextIO, *, starts: bool) -> TextIO:
    raw = _Output(pager, stream.fileno(), starts=starts)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=stream.encoding, errors=stream.errors, line_buffering=True)
