"""Bounds a server's reply before the parser reads it, so that a length that a server only claims costs neither memory
nor time. (An array of 10^9 elements is a header of 13 bytes, and hiredis allocates it.)

Lines of RESP2 (redis.io/docs/latest/develop/reference/protocol-spec); RESP3 is never requested. About 0.2 us per line.
"""

from __future__ import annotations

#: Bounds for all replies of one pipeline. 25,600 pending entries, 100 of each of 256 groups or 25 of each of 1,024, are
#: 180,000 lines and 6 MB.
MAX_BYTES, MAX_LINES = 8 << 20, 250_000
MAX_LINE_BYTES = 64 << 10  #: of a line (a number, a length, an error), not of text
_SIMPLE, _TEXT, _ARRAY = frozenset(b"+-:"), b"$"[0], b"*"[0]


class TooMuch(Exception):
    """A reply beyond the bounds, or with unreadable lengths; the text has the details."""


class ReplyBounds:
    """Feed it received data before the parser. ``begin`` resets the bounds for a new pipeline."""

    def __init__(self) -> None:
        self._text_left = 0  # remaining bytes of the present text
        self._line = b""  # an incomplete line
        self.begin()

    def begin(self) -> None:
        self._bytes = self._lines = self._elements = 0

    def take(self, data: bytes) -> None:
        """Checks received data. Raises TooMuch."""
        self._bytes += len(data)
        if self._bytes > MAX_BYTES:
            raise TooMuch(f"an answer of more than {MAX_BYTES >> 20} MiB")
        at, self._text_left = self._text_left, max(0, self._text_left - len(data))
        if self._line:
            data, self._line = self._line + data, b""
        end, find = len(data), data.find
        lines, most = self._lines, MAX_LINES
        while at < end:
            eol = find(b"\r\n", at)
            if eol < 0:
                if end - at > MAX_LINE_BYTES:
                    raise TooMuch(f"a line of more than {MAX_LINE_BYTES >> 10} KiB")
                self._lines, self._line = lines, data[at:]
                return
            lines += 1
            kind = data[at]
            # Most lines are short texts and integers: they are read here, without a call.
            if kind == _TEXT and eol - at <= 4 and data[at + 1 : eol].isdigit():
                at = eol + 4 + int(data[at + 1 : eol])
            elif kind in _SIMPLE:
                at = eol + 2
            else:
                at = eol + 2 + self._text(kind, data[at + 1 : eol])
            if lines > most or self._elements > most:
                raise TooMuch(f"an answer of more than {MAX_LINES:,} elements")
        self._lines, self._text_left = lines, max(0, at - end)

    def _text(self, kind: int, rest: bytes) -> int:
        """Bytes of text that follow the line of a text or array."""
        try:
            number = int(rest[:20])
        except ValueError:
            raise TooMuch("an answer that is not Redis's") from None
        if kind == _ARRAY:
            if number > MAX_LINES:
                raise TooMuch(f"an array of {number:,} elements")
            self._elements += max(number, 0)  # the parser allocates all of them when it reads this line
            return 0
        if kind != _TEXT:
            raise TooMuch("an answer that is not Redis's")
        if number > MAX_BYTES:
            raise TooMuch(f"a text of {number:,} bytes")
        return number + 2 if number >= 0 else 0
