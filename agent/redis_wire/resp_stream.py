"""Incremental parser of one direction of a Redis connection: requests (arrays of bulk strings, or inline), or replies
of RESP2 and RESP3. Pure.

The input is untrusted, so the kept part of a text and of a message, its depth and its length are bounded. Longer texts
are skipped without being stored. Protocol: redis.io/docs/latest/develop/reference/protocol-spec.
"""

from __future__ import annotations

from math import nan
from typing import Any

#: Bytes that are kept per text, and of all texts per message; elements that are kept per array.
KEPT_TEXT, KEPT_MESSAGE, KEPT_ITEMS = 16384, 65536, 256
_LONGEST_LINE, _DEEPEST, _MOST_ITEMS, _LONGEST_TEXT = 4096, 12, 1 << 20, 1 << 30

Value = Any  #: bytes, int, float, bool, None, list of these, ReplyError or Push


class Garbage(ValueError):
    """Invalid RESP, or not at the beginning of a message."""


class ReplyError(bytes):
    """An error reply."""


class Push(list[Value]):
    """A push message of a server."""


class Cut(bytes):
    """The beginning of a text: the rest was too long to keep, or is missing."""


class _Open:
    """An array or a map with elements outstanding."""

    __slots__ = ("items", "kind", "left")

    def __init__(self, kind: int, left: int) -> None:
        self.kind, self.left = kind, left
        self.items: list[Value] = []


_ARRAYS = {ord("*"): 1, ord("~"): 1, ord(">"): 1, ord("%"): 2, ord("|"): 2}
_TEXTS = frozenset(b"$!=")
_ARRAY, _TEXT, _NUMBER = b"*$:"
_ATTRIBUTE, _PUSH, _ERROR, _VERBATIM = b"|>!="


class RespStream:
    """``feed`` bytes in order; returns complete messages."""

    def __init__(self, *, requests: bool) -> None:
        self._requests = requests
        self.reset()

    def reset(self) -> None:
        """The next byte begins a message."""
        self._line = b""
        self._stack: list[_Open] = []
        self._text: list[bytes] = []
        self._text_kind = self._text_left = self._text_kept = self._kept = 0
        self._text_open = self._cut = False
        self.begun_ns = 0

    @property
    def between(self) -> bool:
        """Whether the next byte begins a message."""
        return not (self._line or self._stack or self._text_open)

    def missing(self, count: int) -> bool:
        """Skips so many missing bytes; False if the beginning of the next message is then unknown."""
        if not self._text_open or count > self._text_left - 2:
            return False
        self._text_left -= count
        self._cut = True
        return True

    def feed(self, data: bytes, t_ns: int = 0) -> list[tuple[Value, int]]:
        """Messages that end in these bytes, each with the t_ns of the bytes in which it began. Raises Garbage; then
        ``reset``.
        """
        out: list[tuple[Value, int]] = []
        at, size = 0, len(data)
        while at < size:
            if not (self._stack or self._text_open or self._line):
                self.begun_ns, self._kept = t_ns, 0
                if data[at] == _ARRAY and (whole := _whole_array(data, at, self._requests)):
                    out.append((whole[0], t_ns))
                    at = whole[1]
                    continue
            if self._text_open:
                at = self._more_text(data, at, out)
                continue
            end = data.find(b"\n", at)
            if end < 0:
                self._line += data[at:]
                if len(self._line) > _LONGEST_LINE:
                    raise Garbage("line")
                break
            line, at = self._line + data[at:end], end + 1
            self._line = b""
            if len(line) > _LONGEST_LINE:
                raise Garbage("line")
            self._take(line.removesuffix(b"\r"), line.endswith(b"\r"), out)
        return out

    def _more_text(self, data: bytes, at: int, out: list[tuple[Value, int]]) -> int:
        part = data[at : at + self._text_left]
        self._text_left -= len(part)
        room = self._text_kept - sum(map(len, self._text)) if self._text else self._text_kept
        if room > 0:
            self._text.append(part[:room])
        if self._text_left == 0:
            self._end_text(part, out)
        return at + len(part)

    def _end_text(self, part: bytes, out: list[tuple[Value, int]]) -> None:
        whole = b"".join(self._text)
        if not part.endswith(b"\r\n" if len(part) > 1 else b"\n"):
            raise Garbage("no line's end behind a text")
        self._text_open = False
        text: bytes = Cut(whole) if self._cut else whole.removesuffix(b"\r\n")
        self._kept += len(text)
        kind = self._text_kind
        if kind == _ERROR:
            text = ReplyError(text)
        elif kind == _VERBATIM:
            text = text[4:]
        self._add(text, out)

    def _take(self, line: bytes, ended: bool, out: list[tuple[Value, int]]) -> None:
        kind = line[0] if line else 0
        if self._requests and not self._stack and kind != 42:  # an inline command
            if words := line.split(maxsplit=KEPT_ITEMS):
                self._add(words[:KEPT_ITEMS], out)
            return
        if not ended or (self._requests and self._stack and kind != 36):
            raise Garbage("no RESP")
        if kind in _ARRAYS:
            self._begin_array(kind, line, out)
        elif kind in _TEXTS:
            length = _integer(line)
            if length < 0:
                if self._requests:  # a server refuses it
                    raise Garbage("request")
                self._add(None, out)
                return
            if length > _LONGEST_TEXT:
                raise Garbage("text")
            self._text, self._text_kind, self._text_left, self._text_open = [], kind, length + 2, True
            room = max(0, min(KEPT_TEXT, KEPT_MESSAGE - self._kept))
            self._cut = length > room
            self._text_kept = room if self._cut else length + 2
        else:
            self._add(_plain(kind, line), out)

    def _begin_array(self, kind: int, line: bytes, out: list[tuple[Value, int]]) -> None:
        count = _integer(line)
        if count < 0:
            self._add(None, out)
            return
        if count > _MOST_ITEMS or len(self._stack) >= _DEEPEST:
            raise Garbage("array")
        array = _Open(kind, count * _ARRAYS[kind])
        if array.left:
            self._stack.append(array)
        elif kind != _ATTRIBUTE:
            self._add(Push() if kind == _PUSH else [], out)

    def _add(self, value: Value, out: list[tuple[Value, int]]) -> None:
        """Adds a value to its array; a completed array to its own."""
        while self._stack:
            array = self._stack[-1]
            if len(array.items) < KEPT_ITEMS:
                array.items.append(value)
            array.left -= 1
            if array.left:
                return
            self._stack.pop()
            if array.kind == _ATTRIBUTE:  # it precedes a value, and is none
                return
            value = Push(array.items) if array.kind == _PUSH else array.items
        out.append((value, self.begun_ns))


def _whole_array(data: bytes, at: int, texts_only: bool) -> tuple[list[Value], int] | None:
    """A complete plain array of short texts and integers at this position, and its end; None for anything else. Nearly
    all messages are such, and this takes a third of the time.
    """
    end = data.find(b"\r\n", at, at + 6)
    digits = data[at + 1 : end]
    if end < 0 or not digits.isdigit() or not 0 < (count := int(digits)) <= KEPT_ITEMS:
        return None
    items: list[Value] = []
    begin, size = end + 2, len(data)
    for _ in range(count):
        end = data.find(b"\r\n", begin, begin + 24)
        if end < 0:
            return None
        digits = data[begin + 1 : end]
        if not digits.isdigit():
            return None
        kind, begin = data[begin], end + 2
        if kind == _TEXT:
            end = begin + int(digits)
            if end + 2 > size or data[end : end + 2] != b"\r\n":
                return None
            items.append(data[begin:end])
            begin = end + 2
        elif kind == _NUMBER and not texts_only:
            items.append(int(digits))
        else:
            return None
    return (items, begin) if begin - at < KEPT_TEXT else None


def _integer(line: bytes) -> int:
    digits = line[1:]
    if not 0 < len(digits) <= 20 or not digits.lstrip(b"+-").isdigit():
        raise Garbage("number")
    try:
        return int(digits)
    except ValueError:
        raise Garbage("number") from None


def _plain(kind: int, line: bytes) -> Value:
    if kind == 43:  # +
        return line[1:]
    if kind == 58:  # :
        return _integer(line)
    if kind == 45:  # -
        return ReplyError(line[1:])
    if kind == 95:  # _
        return None
    if kind == 35 and line[1:] in (b"t", b"f"):  # #
        return line[1:] == b"t"
    if kind == 44:  # ,
        try:
            return float(line[1:64])
        except ValueError:
            return nan
    if kind == 40:  # (
        return line[1:]
    raise Garbage("no RESP")
