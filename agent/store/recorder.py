"""Writes a recording: everything a store receives from now on, in the frame format, closed with END."""

from __future__ import annotations

import time
from typing import BinaryIO

from agent.batch import Batch, make
from agent.store.follow import Follower
from agent.store.frames import Encoder, Frame, Head, Kind
from agent.tables import TABLES


class Recorder:
    """One recording file. The head is that of the store's segment, dated now."""

    def __init__(self, out: BinaryIO, head: Head) -> None:
        self._out = out
        self._encoder = Encoder()
        self.rows = self.ticks = self.bytes = 0
        self._put(Encoder.head(head._replace(created_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME))))

    def add(self, frames: list[Frame]) -> None:
        """Append frames in their order. Raises OSError."""
        for frame in frames:
            if frame.kind == Kind.ROWS:
                self._batch(Batch(frame.table, frame.rows))
            elif frame.kind == Kind.TICK:
                self._put(Encoder.tick(frame.t_ns))
                self.ticks += 1
        self._out.flush()

    def missed(self, segments: int) -> None:
        """Mark that whole segments went by unread."""
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        stage = TABLES["loss"].code("stage", "store")
        self._batch(make("loss", 1, t_ns=now, stage=stage, source=f"record: {segments} segments", to_ns=now))

    def close(self) -> None:
        """Write END; without it a recording counts as cut off."""
        self._put(Encoder.end())
        self._out.flush()

    def _batch(self, batch: Batch) -> None:
        pieces, schemas = self._encoder.batches([batch])
        self._put(b"".join(pieces))
        self._encoder.keep(schemas)
        self.rows += len(batch.rows)

    def _put(self, data: bytes) -> None:
        self._out.write(data)
        self.bytes += len(data)


def wait_for_head(follower: Follower, until: float, poll_s: float) -> tuple[Head | None, list[Frame]]:
    """The head of the segment being written and the frames that came with it; waits for an agent until a monotonic time."""
    frames: list[Frame] = []
    while follower.head is None and time.monotonic() < until:
        frames += follower.poll()
        time.sleep(poll_s)
    return follower.head, frames
