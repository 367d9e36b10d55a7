"""What a client of HTTP/2 sends: how many frames, and how much as one block of headers, since gRPC keeps what comes
until its end, whatever that is. Pure.
"""

from __future__ import annotations

_HEAD = 9
_HEADERS, _CONTINUATION = 1, 9
_END_HEADERS = 4
#: Of a block with all its frames, each counted with its head: far more than gRPC takes of metadata.
MOST_BLOCK_BYTES = 64 << 10


class HeaderBlocks:
    """Of one connection, behind the preface. frames: those that have begun."""

    def __init__(self) -> None:
        self._head = b""
        self._left = self._block = self.frames = 0

    def fit(self, data: bytes) -> bool:
        """Takes what has come next; whether all blocks so far are as long as they may be."""
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left, at = self._left - step, at + step
                continue
            piece = data[at : at + _HEAD - len(self._head)]
            self._head, at = self._head + piece, at + len(piece)
            if len(self._head) < _HEAD:
                break
            self._left, kind, flags = int.from_bytes(self._head[:3], "big"), self._head[3], self._head[4]
            self._head = b""
            self.frames += 1
            if kind in (_HEADERS, _CONTINUATION):
                self._block = _HEAD + self._left + (self._block if kind == _CONTINUATION else 0)
                if self._block > MOST_BLOCK_BYTES:
                    return False
                if flags & _END_HEADERS:
                    self._block = 0
        return True
