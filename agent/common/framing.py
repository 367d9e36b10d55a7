"""Bounds a server's reply before the parser reads it, so that a length that a server only claims costs neither memory
nor time. (An array of 10^9 elements is a header of 13 bytes, and hiredis allocates it.)

Lines of RESP2 (redis.io/docs/latest/develop/reference/protocol-spec); RESP3 is never requested. About 0.2 us per line.
"""

from __future__ import annotations

#: Bounds for all replies of one pipeline. 256 streams with 256 groups, and 100 pending entries of each group, are
#: 180,000 lines and 6 MB.
MAX_BYTES, MAX_LINES = 8 << 20, 250_000
MAX_LINE_BYTES = 64 << 10  #: of a line (a number, a length, an error), not of text
_SIMPLE, _TEXT, _ARRAY = b"+-:", b"$", b"*"


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
        while at < len(data):
            end = data.find(b"\r\n", at)
            if end < 0:
                if len(data) - at > MAX_LINE_BYTES:
                    raise TooMuch(f"a line of more than {MAX_LINE_BYTES >> 10} KiB")
                self._line = data[at:]
                return
            self._lines += 1
            at = end + 2 + self._text(data[at : at + 1], data[at + 1 : end])
            if max(self._lines, self._elements) > MAX_LINES:
                raise TooMuch(f"an answer of more than {MAX_LINES:,} elements")
            self._text_left = max(0, at - len(data))

    def _text(self, kind: bytes, rest: bytes) -> int:
        """Bytes of text that follow this line."""
        if kind in _SIMPLE:
            return 0
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
