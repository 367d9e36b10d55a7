"""The index of a closed hot segment, in its END frame: where each table's rows are and their time range, so that a
query reads only what it needs.

A segment without an index (its agent was killed) is read completely. The payload is offsets and lengths of the frames
of each table (pairs of u32), then a JSON object, then its length and the payload's (u32 each), so that it can be found
from the file's end.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from array import array
from collections.abc import Iterable
from typing import NamedTuple

from agent.batch import Batch
from agent.store.frames import HEADER_BYTES, Encoder, FrameKind

_TAIL = struct.Struct("<II")
_HEADER = struct.Struct("<BBHII")
_MOST_BYTES = 64 << 20
_MOST_OFFSET = 1 << 32


class Span(NamedTuple):
    """Rows of one table. Times are CLOCK_BOOTTIME ns, both ends included. places: offset and length of each frame,
    alternating.
    """

    rows: int
    min_ns: int
    max_ns: int
    places: array[int]


class Index:
    """The writer's side: the index of a growing segment."""

    def __init__(self) -> None:
        self._spans: dict[str, Span] = {}
        self._whole = True

    def add(
        self, batches: Iterable[Batch], pieces: list[bytes | memoryview], offset: int, before: dict[str, int]
    ) -> None:
        """Adds batches that were written from ``offset`` on as these pieces (``Encoder.batches``), to a segment with
        the schemas ``before``.
        """
        sizes = [len(header) + len(payload) for header, payload in zip(pieces[::2], pieces[1::2], strict=False)]
        at, known = 0, set(before)
        for table, rows in batches:
            if not len(rows):
                continue
            size = sizes[at]
            at += 1
            if table not in known:
                known.add(table)
                size += sizes[at]
                at += 1
            old = self._spans.get(table) or Span(0, 1 << 62, -(1 << 62), array("I"))
            self._whole &= offset + size < _MOST_OFFSET
            if self._whole:
                old.places.extend((offset, size))
            times = rows["t_ns"]
            self._spans[table] = Span(
                old.rows + len(rows), min(old.min_ns, int(times.min())), max(old.max_ns, int(times.max())), old.places
            )
            offset += size

    def end(self) -> bytes:
        """The END frame with the index."""
        if not self._whole:
            return Encoder.end()
        places = b"".join(span.places.tobytes() for span in self._spans.values())
        doc = {table: [span.rows, span.min_ns, span.max_ns, len(span.places)] for table, span in self._spans.items()}
        text = json.dumps(doc).encode()
        return Encoder.end(places + text + _TAIL.pack(len(text), len(places) + len(text) + _TAIL.size))


def read(fd: int) -> dict[str, Span] | None:
    """The index of a hot segment; None if it has none or it is damaged. Raises OSError."""
    size = os.fstat(fd).st_size
    tail = os.pread(fd, _TAIL.size, max(0, size - _TAIL.size))
    if len(tail) < _TAIL.size:
        return None
    text_bytes, payload_bytes = _TAIL.unpack(tail)
    start = size - payload_bytes - HEADER_BYTES
    if start < 0 or not text_bytes + _TAIL.size <= payload_bytes <= _MOST_BYTES:
        return None
    frame = os.pread(fd, HEADER_BYTES + payload_bytes, start)
    header, payload = frame[: _HEADER.size], frame[HEADER_BYTES:]
    if len(payload) != payload_bytes or _HEADER.unpack(header) != (FrameKind.END, 0, 0, 0, payload_bytes):
        return None
    if zlib.crc32(payload, zlib.crc32(header)) != int.from_bytes(frame[_HEADER.size : HEADER_BYTES], "little"):
        return None
    doc = json.loads(payload[-_TAIL.size - text_bytes : -_TAIL.size])
    spans, at = {}, 0
    for table, (rows, min_ns, max_ns, count) in doc.items():
        spans[table] = Span(rows, min_ns, max_ns, array("I", payload[at : at + 4 * count]))
        at += 4 * count
    return spans


def runs(spans: Iterable[Span], first: int) -> list[tuple[int, int]]:
    """The (start, end) of each piece of a segment with these spans, in order. first: length of the head, which is left
    out.
    """
    places = sorted(place for span in spans for place in zip(span.places[::2], span.places[1::2], strict=True))
    found, start, end = [], 0, first
    for offset, length in places:
        if offset > end:
            found.append((start, end))
            start = offset
        end = max(end, offset + length)
    return [*found, (start, end)]
