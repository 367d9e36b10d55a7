"""How much of a server's answer is taken: its framing is followed before the parser sees a byte, so that no length
which a server merely claims costs memory or time (an array of a thousand million elements is a header of 13 bytes, and
hiredis believes it).

Lines of RESP2 (redis.io/docs/latest/develop/reference/protocol-spec): nobody asked for RESP3. About 0.2 us a line.
"""

from __future__ import annotations

#: Of all replies of one pipeline. 256 streams with 256 groups, and 100 pending entries of each group, are 180,000 lines
#: and 6 MB.
MAX_BYTES, MAX_LINES = 8 << 20, 250_000
MAX_LINE_BYTES = 64 << 10  #: of a line: a number, a length, an error; not of text, which comes with its length
_SIMPLE, _TEXT, _ARRAY = b"+-:", b"$", b"*"


class TooMuch(Exception):
    """An answer beyond the bounds, or whose lengths cannot be read; the text says what."""


class ReplyBounds:
    """Feed it what is received, before the parser. ``begin`` grants a new pipeline its share."""

    def __init__(self) -> None:
        self._text_left = 0  # bytes of a text that are still to come
        self._line = b""  # the beginning of a line whose end is still to come
        self.begin()

    def begin(self) -> None:
        self._bytes = self._lines = self._elements = 0

    def take(self, data: bytes) -> None:
        """Raises TooMuch."""
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
            self._elements += max(number, 0)  # the parser makes room for them all when it reads this line
            return 0
        if kind != _TEXT:
            raise TooMuch("an answer that is not Redis's")
        if number > MAX_BYTES:
            raise TooMuch(f"a text of {number:,} bytes")
        return number + 2 if number >= 0 else 0
