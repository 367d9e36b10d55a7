"""Writes a recording: everything a store receives from now on, in the frame format, closed with END, as one gzip
stream.

The stream is flushed to a byte boundary after each look at the store, so that a recorder that is killed loses less than
a second.
"""

from __future__ import annotations

import time
import zlib
from typing import BinaryIO

from agent.batch import Batch, Loss, losses
from agent.common.clocks import boot_ns
from agent.store.follow import Follower
from agent.store.frames import Encoder, Frame, FrameKind, Head

_LEVEL = 3  # rows repeat much: more effort gains a tenth for thrice the time
_GZIP = 31  # zlib.compressobj: the widest window, in gzip's framing
_FLUSH_S = 0.5


class Recorder:
    """One recording file. The head is that of the store's segment, dated now. ``bytes`` are those in the file."""

    def __init__(self, out: BinaryIO, head: Head) -> None:
        self._out = out
        self._pack = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        self._encoder = Encoder()
        self.rows = self.ticks = self.bytes = 0
        self._put(Encoder.head(head._replace(created_ns=boot_ns())))
        self._sync()

    def add(self, frames: list[Frame]) -> None:
        """Append frames in their order. Raises OSError."""
        for frame in frames:
            if frame.kind == FrameKind.ROWS:
                self._batch(Batch(frame.table, frame.rows))
            elif frame.kind == FrameKind.TICK:
                self._put(Encoder.tick(frame.t_ns))
                self.ticks += 1
        if time.monotonic() - self._synced >= _FLUSH_S:
            self._sync()

    def missed(self, segments: int) -> None:
        """Mark that whole segments went by unread."""
        self._batch(losses("store", Loss(f"record: {segments} segments", to_ns=boot_ns())))

    def close(self) -> None:
        """Write END; without it a recording counts as cut off."""
        self._put(Encoder.end())
        self._write(self._pack.flush())
        self._out.flush()

    def _batch(self, batch: Batch) -> None:
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


def wait_for_head(follower: Follower, until: float, poll_s: float) -> tuple[Head | None, list[Frame]]:
    """The head of the segment being written and the frames that came with it; waits for an agent until a monotonic
    time.
    """
    frames: list[Frame] = []
    while follower.head is None and time.monotonic() < until:
        frames += follower.poll()
        time.sleep(poll_s)
    return follower.head, frames
