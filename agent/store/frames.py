"""The one binary format of hot store segments and recordings: append-only, self-describing, checksummed.

Layout, little endian::

    file   magic "tickscop" | u32 version | u32 length | u32 crc32 of the JSON | JSON head | frame...
    frame  u8 kind | u8 0 | u16 schema | u32 rows | u32 length | u32 crc32 | payload (length bytes)

The checksum covers the first 12 bytes of the frame header and the payload, so a torn header is found as well as a torn
payload. Kinds: SCHEMA names a table's columns before its first rows in the file; ROWS is the raw bytes of a numpy
structured array; TICK is a watermark, the CLOCK_BOOTTIME ns to which the correlator was advanced; END is a clean close,
its payload empty or an index (agent/store/index.py).

Encoding and decoding are pure: bytes in, bytes or arrays out. Files are read whole or in pieces, never mapped, because
a writer on a full disk cuts off its half-written frame and a mapped reader would die of it.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from agent.batch import Batch
from agent.columns import NULL_I64
from agent.common.table import Table
from agent.tables import TABLES

MAGIC = b"tickscop"
VERSION = 1
_FILE = struct.Struct("<8sIII")
_FRAME = struct.Struct("<BBHII")
_CRC = struct.Struct("<I")
HEADER_BYTES = _FRAME.size + _CRC.size
_TICK = struct.Struct("<q")
_MAX_JSON = 1 << 20
_TYPES = re.compile(r"<i8|<f8|<u4|\|?i1|\|S\d{1,5}|\|V\d{1,3}")


class FrameKind(IntEnum):
    SCHEMA = 1
    ROWS = 2
    TICK = 3
    END = 4


class Head(NamedTuple):
    """Origin of a file. created_ns, real_mono_ns: CLOCK_BOOTTIME and REALTIME - MONOTONIC at creation, ns.
    wall_from_ns, wall_to_ns: wall time range of its rows, Unix ns; while the file is written, its creation and
    NULL_I64. NULL_I64: unknown.
    """

    boot_id: str
    host: str
    version: str
    created_ns: int
    real_mono_ns: int
    wall_from_ns: int = NULL_I64
    wall_to_ns: int = NULL_I64

    @classmethod
    def of(cls, doc: Mapping[str, Any]) -> Head:
        """From a JSON object. Raises KeyError if a member is missing."""
        return cls(**{name: doc[name] for name in cls._fields if name in doc or name not in cls._field_defaults})


class Frame(NamedTuple):
    """A decoded frame. value: rows of dtype ``TABLES[table].dtype`` for ROWS, t_ns for TICK, None for END."""

    kind: FrameKind
    table: str
    value: np.ndarray | int | None

    @property
    def rows(self) -> np.ndarray:
        """The rows of a ROWS frame. Raises TypeError for another kind."""
        if not isinstance(self.value, np.ndarray):
            raise TypeError(f"a {self.kind.name} frame has no rows")
        return self.value

    @property
    def t_ns(self) -> int:
        """The watermark of a TICK frame, CLOCK_BOOTTIME ns. Raises TypeError for another kind."""
        if not isinstance(self.value, int):
            raise TypeError(f"a {self.kind.name} frame has no time")
        return self.value


class Corrupt(ValueError):
    """Bytes that no writer of this format produces; ``offset`` is their place."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


class Encoder:
    """Frames for one file; remembers the schemas in that file. tables: declarations that replace today's."""

    def __init__(self, tables: Mapping[str, Table] = TABLES) -> None:
        self._tables = tables
        self._schemas: dict[str, int] = {}

    @staticmethod
    def head(head: Head) -> bytes:
        text = json.dumps(head._asdict()).encode()
        return _FILE.pack(MAGIC, VERSION, len(text), zlib.crc32(text)) + text

    def batches(self, batches: Iterable[Batch]) -> tuple[list[bytes | memoryview], dict[str, int]]:
        """Pieces to write, and the schemas to ``keep`` after writing. The pieces are the rows themselves if they are
        contiguous.
        """
        pieces: list[bytes | memoryview] = []
        known = dict(self._schemas)
        for table, rows in batches:
            if not len(rows):
                continue
            if table not in known:
                known[table] = len(known)
                pieces += _frame(FrameKind.SCHEMA, known[table], 0, _describe(self._tables[table]))
            pieces += _frame(FrameKind.ROWS, known[table], len(rows), np.ascontiguousarray(rows).view(np.uint8).data)
        return pieces, known

    @property
    def schemas(self) -> dict[str, int]:
        """The schemas in the file."""
        return self._schemas

    def keep(self, schemas: dict[str, int]) -> None:
        self._schemas = schemas

    @staticmethod
    def tick(t_ns: int) -> bytes:
        return b"".join(_frame(FrameKind.TICK, 0, 0, _TICK.pack(t_ns)))

    @staticmethod
    def end(index: bytes = b"") -> bytes:
        """The END frame of a clean close; index: see agent/store/index.py."""
        return b"".join(_frame(FrameKind.END, 0, 0, index))


def _frame(
    kind: FrameKind, schema: int, rows: int, payload: bytes | memoryview
) -> tuple[bytes | memoryview, bytes | memoryview]:
    header = _FRAME.pack(kind, 0, schema, rows, len(payload))
    return header + _CRC.pack(zlib.crc32(payload, zlib.crc32(header))), payload


def _describe(table: Table) -> bytes:
    columns = [{"name": c.name, "kind": c.kind, "unit": c.unit, "names": c.names} for c in table.columns]
    return json.dumps({"table": table.name, "dtype": table.dtype.descr, "columns": columns}).encode()


class _Schema:
    """Converts rows of one schema frame to rows of today's table. ``table`` is None if there is no such table today."""

    def __init__(self, payload: bytes) -> None:
        doc = json.loads(payload)
        descr = [(str(d[0]), str(d[1]), tuple(int(n) for n in d[2]) if len(d) > 2 else ()) for d in doc["dtype"]]
        if bad := [t for _, t, _ in descr if not _TYPES.fullmatch(t)]:
            raise ValueError(f"column type {bad[0]!r}")
        self.dtype: np.dtype[np.void] = np.dtype(descr)
        self.name = str(doc["table"])
        self.table = TABLES.get(self.name)
        self._stored = {c["name"]: (c["kind"], tuple(c["names"])) for c in doc["columns"]}
        today = self.table and {c.name: (c.kind, c.names) for c in self.table.columns}
        self._same = self.table is not None and self.dtype == self.table.dtype and self._stored == today

    def rows(self, payload: bytes | memoryview) -> np.ndarray:
        """The rows in today's dtype: columns found by name, unknown ones ignored, missing ones null."""
        assert self.table is not None
        stored = np.frombuffer(payload, self.dtype)
        if self._same:
            return stored
        rows = self.table.empty(len(stored))
        for c in self.table.columns:
            kind, names = self._stored.get(c.name, ("", ()))
            if kind != c.kind or stored[c.name].shape[1:] != rows[c.name].shape[1:]:
                continue
            if kind == "enum" and names != c.names:
                recode = np.array([c.names.index(n) if n in c.names else -1 for n in names] + [-1], "i1")
                rows[c.name] = recode[np.clip(stored[c.name], -1, len(names))]
            else:
                rows[c.name] = stored[c.name]
        return rows


class FrameDecoder:
    """Incremental decoder of one file: ``feed`` it bytes in order, take complete frames.

    head: the file's head once decoded. offset: bytes decoded so far, always at a frame boundary. ended: END was
    decoded. pending: bytes fed but not decoded, the start of an incomplete frame or a torn tail. corrupt: why decoding
    stopped for good, after bytes that cannot become a frame. unknown: tables in the file that do not exist today.
    tables: rows of other tables are skipped, without a check of their checksums, because a query needs one table.
    """

    def __init__(self, tables: frozenset[str] | None = None) -> None:
        self.head: Head | None = None
        self.offset = 0
        self.ended = False
        self.corrupt: Corrupt | None = None
        self.unknown: set[str] = set()
        self._tables = tables
        self._schemas: dict[int, _Schema] = {}
        self._rest: bytes | memoryview = b""

    @property
    def pending(self) -> int:
        return len(self._rest)

    def rewind(self) -> None:
        """Forgets the pending bytes. The caller feeds them again from ``offset``, because a writer may have cut them
        off.
        """
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames completed by ``data``. Stops for good at damage (see ``corrupt``); never raises for it."""
        view = memoryview(bytes(self._rest) + data if len(self._rest) else data)
        at = 0
        try:
            while self.corrupt is None:
                frame, size = self._next(view[at:])
                if not size:
                    break
                at += size
                self.offset += size
                if frame is not None:
                    yield frame
        except (Corrupt, ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
            self.corrupt = error if isinstance(error, Corrupt) else Corrupt(f"unreadable: {error}", self.offset)
        self._rest = bytes(view[at:])

    def _next(self, view: memoryview) -> tuple[Frame | None, int]:
        """The next frame and its size in bytes; size 0 if it is incomplete. Frame None: nothing to return."""
        if self.head is None:
            self.head, size = _read_head(view)
            return None, size
        if len(view) < HEADER_BYTES:
            return None, 0
        kind, zero, schema, count, length = _FRAME.unpack_from(view)
        if zero or kind not in FrameKind.__members__.values():
            raise Corrupt(f"no frame (kind {kind})", self.offset)
        size = HEADER_BYTES + length
        if len(view) < size:
            return None, 0
        known = self._schemas.get(schema) if kind == FrameKind.ROWS else None
        if known and known.table is None:
            self.unknown.add(known.name)
        if known and (known.table is None or (self._tables is not None and known.table.name not in self._tables)):
            return None, size
        payload = view[HEADER_BYTES:size]
        if zlib.crc32(payload, zlib.crc32(view[: _FRAME.size])) != _CRC.unpack_from(view, _FRAME.size)[0]:
            raise Corrupt("checksum does not match", self.offset)
        if kind == FrameKind.SCHEMA:
            self._schemas[schema] = _Schema(bytes(payload))
            return None, size
        if kind == FrameKind.TICK:
            return Frame(FrameKind.TICK, "", _TICK.unpack(payload)[0]), size
        if kind == FrameKind.END:
            self.ended = True
            return Frame(FrameKind.END, "", None), size
        if known is None or length != count * known.dtype.itemsize:
            raise Corrupt("rows without a fitting schema", self.offset)
        assert known.table is not None
        return Frame(FrameKind.ROWS, known.table.name, known.rows(payload)), size


def _read_head(view: memoryview) -> tuple[Head | None, int]:
    if bytes(view[: len(MAGIC)]) != MAGIC[: len(view)]:
        raise Corrupt("not a tickscope file", 0)
    if len(view) < _FILE.size:
        return None, 0
    _, version, length, crc = _FILE.unpack_from(view)
    if version != VERSION:
        raise Corrupt(f"format version {version}, this tickscope reads version {VERSION}", len(MAGIC))
    if length > _MAX_JSON:
        raise Corrupt(f"head of {length} bytes", len(MAGIC))
    if len(view) < _FILE.size + length:
        return None, 0
    text = bytes(view[_FILE.size : _FILE.size + length])
    if zlib.crc32(text) != crc:
        raise Corrupt("checksum of the head does not match", 0)
    doc = json.loads(text)
    return Head.of(doc), _FILE.size + length


def read(buffer: bytes) -> Iterator[Frame]:
    """The complete frames of a file's bytes. Stops without an error at a torn tail; ``FrameDecoder`` gives place and
    reason.
    """
    yield from FrameDecoder().feed(buffer)
