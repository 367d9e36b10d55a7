"""Reads a recording: a file in the frame format, as `tickscope record` writes it (one gzip stream) or unpacked."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from agent.batch import Batch
from agent.errors import AgentError
from agent.store.frames import Frame, FrameDecoder, FrameKind, Head

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP = 31  # zlib.decompressobj: the widest window, in gzip's framing
_CHUNK = 1 << 20
_OTHER = "name a file that `tickscope record` wrote"
_AGAIN = "record again with this version: tickscope record -o FILE"


class Recording:
    """The frames of one recording, once: ``for frame in recording``. tables: only rows of these.

    head: origin of the file. cut: after the last frame, why the recording has no END; it then holds everything up to
    that point. Raises AgentError with file and place: at once for a file that is no recording or of another format
    version, and during reading for a damaged one. Unpacks about a megabyte at once.
    """

    def __init__(self, path: str | Path, tables: frozenset[str] | None = None) -> None:
        self.cut = ""
        self._path, self._whole = path, True
        self._decoder = FrameDecoder(tables)
        self._chunks = self._unpacked(_open(path))
        self._first: list[Frame] = []
        while self._decoder.head is None and (data := next(self._chunks, b"")):
            self._first += self._decoder.feed(data)
            self._demand_sound()
        if self._decoder.head is None:
            raise AgentError(f"{path} is not a readable recording: it ends within its head", remedy=_OTHER)
        self.head: Head = self._decoder.head

    def __iter__(self) -> Iterator[Frame]:
        yield from self._first
        for data in self._chunks:
            yield from self._decoder.feed(data)
            self._demand_sound()
        if not self._decoder.ended:
            torn = f", and {self._decoder.pending} bytes of a torn frame follow" if self._decoder.pending else ""
            self.cut = f"its last whole frame ends at byte {self._decoder.offset} of what it holds{torn}"
        elif self._decoder.pending:
            raise AgentError(
                f"{self._path} is not a readable recording: {self._decoder.pending} bytes follow its end", remedy=_AGAIN
            )
        elif not self._whole:
            self.cut = "its last bytes are missing, but no frame"

    def events(self, without: frozenset[str] = frozenset()) -> Iterator[Batch | int]:
        """The input of the recorded agent's correlator: batches, and watermarks (CLOCK_BOOTTIME ns). without: tables
        that are left out.
        """
        for frame in self:
            if frame.kind == FrameKind.ROWS and frame.table not in without:
                yield Batch(frame.table, frame.rows)
            elif frame.kind == FrameKind.TICK:
                yield frame.t_ns

    def _unpacked(self, file: BinaryIO) -> Iterator[bytes]:
        with file:
            data = file.read(_CHUNK)
            if data[: len(_GZIP_MAGIC)] != _GZIP_MAGIC:
                while data:
                    yield data
                    data = file.read(_CHUNK)
                return
            unpack = zlib.decompressobj(_GZIP)
            while data and not unpack.eof:
                try:
                    out = unpack.decompress(data, _CHUNK)
                except zlib.error as error:
                    raise AgentError(
                        f"{self._path} is not a readable recording: damaged after byte {self._decoder.offset} of what"
                        f" it holds ({error})",
                        remedy=_AGAIN,
                    ) from error
                if out:
                    yield out
                data = unpack.unconsumed_tail or file.read(_CHUNK)
            if rest := unpack.flush():
                yield rest
            self._whole = unpack.eof
            if unpack.unused_data:
                raise AgentError(
                    f"{self._path} is not a readable recording: {len(unpack.unused_data)} bytes follow its end",
                    remedy=_AGAIN,
                )

    def _demand_sound(self) -> None:
        bad = self._decoder.corrupt
        if bad is not None:
            raise AgentError(f"{self._path} is not a readable recording: {bad} (byte {bad.offset})", remedy=_AGAIN)


def _open(path: str | Path) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise AgentError(f"cannot read {path}: {error.strerror}", remedy=_OTHER) from error
