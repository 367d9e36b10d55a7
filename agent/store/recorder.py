"""Writes a recording: everything that a store receives from now on, in the frame format, closed with END, as one gzip
stream.

The stream is flushed to a byte boundary after each poll of the store, so that a killed recorder loses less than a
second.
"""

from __future__ import annotations

import time
import zlib
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from agent.ask.question import Question, Where
from agent.batch import Batch, Loss, losses
from agent.common.clocks import boot_ns
from agent.common.version import VERSION
from agent.store.follow import Follower
from agent.store.frames import Encoder, Frame, FrameKind, Head
from agent.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.ask.row_source import RowSource

_LEVEL = 3  # rows repeat much: a higher level saves a tenth for three times the time
_GZIP = 31  # zlib.compressobj: the widest window, in gzip's framing
_FLUSH_S = 0.5
_SECOND = 10**9
#: Tables that the correlator derives: a replay computes them again.
MADE_BY_AGENT = ("finding", "evidence", "limiter_jump")


class Recorder:
    """One recording file. The head is that of the store's segment, dated now. ``bytes`` is the file's size."""

    def __init__(self, out: BinaryIO, head: Head) -> None:
        self._out = out
        self._pack = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        self._encoder = Encoder()
        self.rows = self.ticks = self.bytes = 0
        self._put(Encoder.head(head._replace(created_ns=boot_ns())))
        self._sync()

    def add(self, frames: list[Frame]) -> None:
        """Appends frames in order. Raises OSError."""
        for frame in frames:
            if frame.kind == FrameKind.ROWS:
                self.batch(Batch(frame.table, frame.rows))
            elif frame.kind == FrameKind.TICK:
                self.tick(frame.t_ns)
        if time.monotonic() - self._synced >= _FLUSH_S:
            self._sync()

    def tick(self, t_ns: int) -> None:
        """Appends a watermark, CLOCK_BOOTTIME ns."""
        self._put(Encoder.tick(t_ns))
        self.ticks += 1

    def missed(self, segments: int) -> None:
        """Records that whole segments were missed."""
        self.batch(losses("store", Loss(f"record: {segments} segments", to_ns=boot_ns())))

    def close(self) -> None:
        """Writes END; a recording without it counts as cut off."""
        self._put(Encoder.end())
        self._write(self._pack.flush())
        self._out.flush()

    def batch(self, batch: Batch) -> None:
        """Appends rows of one table."""
        pieces, schemas = self._encoder.batches([batch])
        self._put(b"".join(pieces))
        self._encoder.keep(schemas)
        self.rows += len(batch.rows)

    def _sync(self) -> None:
        self._write(self._pack.flush(zlib.Z_SYNC_FLUSH))
        self._out.flush()
        self._synced = time.monotonic()

    def _put(self, data: bytes) -> None:
        self._write(self._pack.compress(data))

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self.bytes += len(data)


def record_past(out: BinaryIO, source: RowSource, boot_id: str, host: str) -> Recorder:
    """Writes the rows of a boot in the source's window, in order of time, with a tick each second, as a recording.
    Raises OSError, and AgentError as the source does.

    Late rows are sorted in here, so a replay's findings may differ from the agent's.
    """
    in_boot = Where("boot_id", "=", boot_id)
    recorder = Recorder(out, Head(boot_id, host, VERSION, boot_ns(), 0))
    waiting = [_Past(source, name, in_boot) for name in TABLES if name not in MADE_BY_AGENT]
    first_ns = min((past.next_ns for past in waiting if past.next_ns is not None), default=0)
    second = first_ns // _SECOND * _SECOND
    waiting = [past for past in waiting if past.next_ns is not None]
    while waiting:
        second += _SECOND
        for past in waiting:
            for rows in past.until(second):
                recorder.batch(Batch(past.table, rows))
        recorder.tick(second)
        waiting = [past for past in waiting if past.next_ns is not None]
    recorder.close()
    return recorder


class _Past:
    """The rows of a table in order of time; only some are in memory. ``next_ns``: CLOCK_BOOTTIME of the next row, None
    after the last one.
    """

    def __init__(self, source: RowSource, table: str, where: Where) -> None:
        self.table = table
        columns = tuple(column.name for column in TABLES[table].columns)
        self._parts = source.tables(Question(table, columns, where=(where,)))
        self._keep(np.empty(0, TABLES[table].dtype))

    def until(self, t_ns: int) -> Iterator[np.ndarray]:
        """Rows before that time. Each row is given once."""
        while self.next_ns is not None and self.next_ns < t_ns:
            count = int(np.searchsorted(self._rows["t_ns"], t_ns))
            yield self._rows[:count]
            self._keep(self._rows[count:])

    def _keep(self, rows: np.ndarray) -> None:
        """These rows are next, or where there are none the next part."""
        dtype = TABLES[self.table].dtype
        self._rows = rows if len(rows) else next((part.astype(dtype) for part in self._parts if len(part)), rows)
        self.next_ns = int(self._rows["t_ns"][0]) if len(self._rows) else None


def wait_for_head(follower: Follower, until: float, poll_s: float) -> tuple[Head | None, list[Frame]]:
    """The head of the segment being written and the frames that came with it. Waits for an agent until a monotonic
    time.
    """
    frames: list[Frame] = []
    while follower.head is None and time.monotonic() < until:
        frames += follower.poll()
        time.sleep(poll_s)
    return follower.head, frames
