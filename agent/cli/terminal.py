"""A whole terminal screen: its state, what is drawn on it, and the keys pressed. Escape sequences are those that every
terminal in use knows (ECMA-48, xterm), so no terminfo entry is needed.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import select
import signal
import sys
import termios
import tty
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from agent.common.printable import printable

#: Another screen, no cursor, no line that goes on in the next one, and text in the order in which it was written: names
#: in right-to-left scripts then stay in their columns (bidirectional support mode: explicit).
_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[8l\x1b[2J"
_LEAVE = b"\x1b[0m\x1b[8h\x1b[?7h\x1b[?25h\x1b[?1049l"
#: Terminals that know it show what is between these at once.
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
_KEY = re.compile(r"\x1b\[[0-9;]*[ -/]*[@-~]|\x1bO[@-~]|[^\x1b]|\x1b")
_NAMED = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[1~": "home",
    "\x1b[F": "end",
    "\x1b[4~": "end",
    "\x1b[Z": "back tab",
    "\x1b[D": "left",
    "\x1b[C": "right",
    "\t": "tab",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x15": "erase",
    "\x0c": "redraw",
    "\x1b": "escape",
}
_SGR = {"bold": "1", "faint": "2", "line": "4", "chosen": "7", "alarm": "31", "warning": "33", "well": "32"}
_SGR |= {"focus": "30;42", "heading": "30;46"}
#: The styles that are colours, and what replaces them without colours.
_PLAIN = {"alarm": "1", "warning": "", "well": "", "focus": "1;7", "heading": "1;4"}


class Cell(NamedTuple):
    """Text in so many columns of a line. style: words of ``_SGR``."""

    text: str
    width: int
    style: str = ""
    right: bool = False


def columns(text: str) -> int:
    """How many columns a terminal is expected to give printable text."""
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, width: int) -> str:
    """The start of the text, with an ellipsis where something is missing."""
    if len(text) <= width and text.isascii():
        return text
    if columns(text) <= width:
        return text
    left, out = width - 1, []
    for character in text:
        left -= _width(character)
        if left < 0:
            break
        out.append(character)
    return "".join(out) + "…" if width > 0 else ""


def clean(text: str, encoding: str) -> str:
    """The text without what acts on a terminal or what its encoding lacks."""
    text = printable(text)
    return text if text.isascii() else text.encode(encoding, "backslashreplace").decode(encoding)


def plain(line: Sequence[Cell]) -> str:
    """The line as text, without styles."""
    return "".join(_padded(cell) for cell in line).rstrip()


def drawn(line: Sequence[Cell], colour: bool) -> str:
    """The line with escape sequences. Behind text that a terminal may show wider or narrower than expected, the place
    of the next cell is given in numbers: no name can move the columns behind it.
    """
    out, at, unsure = [], 0, False
    for cell in line:
        if unsure:
            out.append(f"\x1b[{at + 1}G")
        codes = [_SGR[word] if colour else _PLAIN.get(word, _SGR[word]) for word in cell.style.split()]
        sgr = ";".join(filter(None, codes))
        text = _padded(cell)
        out.append(f"\x1b[{sgr}m{text}\x1b[0m" if sgr else text)
        at += cell.width
        unsure = not text.isascii()
    return "".join(out)


def _padded(cell: Cell) -> str:
    text = cut(cell.text, cell.width)
    pad = " " * (cell.width - columns(text))
    return pad + text if cell.right else text + pad


def keys(data: str) -> Iterator[str]:
    """Names of keys, and characters that were typed. Other keys are left out."""
    for pressed in _KEY.findall(data):
        name = _NAMED.get(pressed.replace("\x1bO", "\x1b["), pressed)
        if name != pressed or (len(pressed) == 1 and pressed.isprintable()):
            yield name


class Terminal:
    """The terminal on stdin and stdout, as one screen while the context lasts. Ctrl-Z and SIGCONT work as in any other
    program. SIGTERM, SIGHUP and Ctrl-C leave it in order.

    wake: a descriptor that ends a wait when it can be read.
    """

    def __init__(self, wake: int) -> None:
        self._wake = wake
        self._ours, self._signals = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: list[object] = []
        self._shown: list[str] = []
        self._size = (0, 0)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end within a character
        self._stopped = self._continued = False

    def __enter__(self) -> Terminal:
        self._before = termios.tcgetattr(sys.stdin.fileno())
        signal.set_wakeup_fd(self._signals, warn_on_full_buffer=False)
        for number, handler in (
            (signal.SIGWINCH, lambda *_: None),
            (signal.SIGTSTP, lambda *_: setattr(self, "_stopped", True)),
            (signal.SIGCONT, lambda *_: setattr(self, "_continued", True)),
            (signal.SIGINT, signal.default_int_handler),
            (signal.SIGTERM, _end),
            (signal.SIGHUP, _end),
        ):
            signal.signal(number, handler)
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        self._leave()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, now."""
        try:
            found = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            return self._size
        return (found.columns or 80, found.lines or 24)

    def draw(self, lines: Sequence[str]) -> None:
        """Writes the lines that have changed since the last time."""
        size = self.size
        if size != self._size:
            self._size, self._shown = size, []
        changed = [
            f"\x1b[{i + 1};1H\x1b[K{line}"  # erased first: behind the last column it would erase that
            for i, line in enumerate(lines)
            if i >= len(self._shown) or self._shown[i] != line
        ]
        if not self._shown:
            changed.append("\x1b[J" if len(lines) < size[1] else "")
        self._shown = list(lines)
        if changed:
            self._write("".join([_BEGIN, *changed, _END]).encode(sys.stdout.encoding, "backslashreplace"))

    def read(self, timeout_s: float) -> list[str]:
        """Waits until a key is pressed, the size changes, ``wake`` can be read, or that time has passed. Returns the
        keys. Raises EOFError when the terminal has gone.
        """
        ready, _, _ = select.select([sys.stdin.fileno(), self._ours, self._wake], [], [], max(timeout_s, 0.0))
        for fd in (self._ours, self._wake):
            if fd in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 4096)
        if self._stopped:
            self._suspend()
        if self._continued:  # also after SIGSTOP, which cannot be noticed before
            self._continued = False
            self._take()
        if sys.stdin.fileno() not in ready:
            return []
        try:
            data = os.read(sys.stdin.fileno(), 4096)
        except OSError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        return list(keys(self._decoder.decode(data)))

    def redraw(self) -> None:
        """The next ``draw`` writes every line."""
        self._shown = []

    def _take(self) -> None:
        tty.setcbreak(sys.stdin.fileno(), termios.TCSADRAIN)
        self._write(_ENTER)
        self._shown = []

    def _leave(self) -> None:
        self._write(_LEAVE)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._before)  # type: ignore[arg-type]

    def _suspend(self) -> None:
        self._stopped = False
        self._leave()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # goes on here after SIGCONT
        signal.signal(signal.SIGTSTP, handler)
        self._continued = True

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # a terminal that has gone: ``read`` notices
            while data:
                data = data[os.write(sys.stdout.fileno(), data) :]


def _end(number: int, _: object) -> None:
    raise SystemExit(128 + number)
