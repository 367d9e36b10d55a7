"""The hot store: the agent appends rows to it, crash-safe, with one writer.

A failing disk never stops the agent: rows wait in a bounded buffer, and the oldest are dropped and counted by table.
Once writing works again, a ``loss`` row per table has the number of lost rows and their time range. Until then
agent/store/outage.py reports it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.batch import Batch, Loss, losses
from agent.common import remedy
from agent.common.clocks import apart, boot_ns
from agent.common.copies import copied
from agent.errors import UNREACHABLE, AgentError
from agent.store import hot_file, opening, segments
from agent.store.backlog import Backlog
from agent.store.frames import Encoder, Head
from agent.store.index import Index
from agent.store.outage import Lost, Outage, OutageFile
from agent.store.spawn import Limits, SealerProcess

#: Interval at which writing is retried and the outage file is updated.
_RETRY_NS = _REPORT_NS = 1_000_000_000


class HotStore:
    """Appends batches to ``hot-SEQ.tsl`` in a directory. A Sink (agent/contracts.py), for one thread; the agent uses it
    through agent/store/writer.py.

    where: the directory: a descriptor opened before privileges were dropped (duplicated here), or a path (created).
    seal_command: argv of the sealer; None for this interpreter; empty for no sealing. Raises AgentError (exit 4) if
    another process writes this store, or the directory cannot be used.
    """

    name = "store"

    def __init__(
        self,
        where: int | str | Path,
        boot_id: str,
        host: str,
        *,
        version: str = "",
        limits: Limits | None = None,
        seal_command: Sequence[str] | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self._boot_id, self._host, self._version = boot_id, host, version
        self._backlog = Backlog()
        self._failure: OSError | None = None
        self._damaged = ""
        self._retry_at = 0
        self._fd = -1
        self._measured: tuple[list[int], int] = ([], 0)
        self._sizes = (0, 0)
        self._dir_fd = os.dup(where) if isinstance(where, int) else opening.make_dir(where)
        try:
            self._lock_fd = opening.lock(self._dir_fd)
            self._outage_file = OutageFile(self._dir_fd)
            self._reported_ns = self._failed_ns = 0
            self._sealer = (
                SealerProcess(self._dir_fd, self.limits, seal_command) if seal_command is None or seal_command else None
            )
            self._begin()
        except BaseException:
            os.close(self._dir_fd)
            raise

    def limit(self, **changed: float) -> None:
        """Changes the limits ``max_bytes``, ``max_age_s``."""
        self.limits = replace(self.limits, **changed)  # type: ignore[arg-type]
        if self._sealer is not None:
            self._sealer.limits = self.limits

    def _begin(self) -> None:
        """Opens the first segment of this run. A previous segment that was not closed gives a loss row."""
        hot = segments.hot_files(self._dir_fd)
        self._seq = max([*hot, *segments.listing(self._dir_fd).sealed], default=0)
        crash = opening.crash(self._dir_fd, self._seq) if self._seq in hot else None
        left = self._outage_file.left
        if left is not None and left.boot_id == self._boot_id:
            self._backlog.lost.update(left.dropped)
        try:
            if left is not None and left.boot_id != self._boot_id and (rows := left.rows()):
                self._of_old_boot(Head(left.boot_id, left.host, self._version, left.since_ns, 0), rows)
            if crash is not None and crash[0] is not None and crash[0].boot_id != self._boot_id:
                self._of_old_boot(
                    crash[0]._replace(created_ns=crash[1]), losses("store", Loss("agent", None, crash[1]))
                )
            self._open_next()
        except OSError as error:
            os.close(self._lock_fd)
            self._outage_file.close()
            raise AgentError(
                f"cannot write the store: {error.strerror}", remedy=remedy.of_write(error), exit_code=UNREACHABLE
            ) from error
        unsure = crash is not None and (crash[0] is None or crash[0].boot_id == self._boot_id)
        self.append([losses("store", Loss("agent", None, crash[1], boot_ns()))] if unsure and crash else [])
        if self._failure is None:
            self._outage_file.clear()
        if self._sealer is not None and hot:
            self._sealer.request(self._seq)

    def _of_old_boot(self, head: Head, lost: Batch) -> None:
        """Losses of an earlier boot have that boot's clock, so they are stored as a segment of that boot."""
        self._seq += 1
        hot_file.whole(self._dir_fd, self._seq, head, lost)

    def offer(self, batch: Batch) -> None:
        self.append([batch])

    def append(self, batches: Iterable[Batch], tick_ns: int | None = None) -> None:
        """Stores rows and, with ``tick_ns``, the watermark that the correlator then reached. Never raises.

        Takes about a third of a millisecond per megabyte. Rows are copied if they must wait. A batch that cannot be
        stored at all is dropped.
        """
        new = [b for b in batches if len(b.rows)]
        if self._failure is not None and (now_ns := boot_ns()) < self._retry_at:
            self._hold(new)
            if now_ns - self._reported_ns >= _REPORT_NS:
                self._write_outage()
            return
        try:
            self._maintain()
            if self._fd < 0:
                self._open_next()
            self._write([*self._backlog.batches, *self._backlog.unreported(), *new], tick_ns)
            self._backlog.take()
            self._backlog.lost, self._failure = {}, None
            self._outage_file.clear()
        except OSError as error:
            self._fail(error)
            self._hold(new)
            self._write_outage()
        except Exception:  # noqa: BLE001 - an error in one batch must not lose the others
            waiting = [*self._backlog.batches, *new]
            self._backlog.take()
            self._one_by_one(waiting)

    def _fail(self, error: OSError) -> None:
        now_ns = boot_ns()
        if self._failure is None:
            self._failed_ns = now_ns
        self._failure = error
        self._retry_at = now_ns + _RETRY_NS

    def _write_outage(self) -> None:
        """Writes the outage file, which queries read."""
        assert self._failure is not None
        self._reported_ns, why = boot_ns(), self._failure.strerror or str(self._failure)
        self._outage_file.write(
            Outage(self._boot_id, self._host, os.getpid(), self._failed_ns, why, self._backlog.rows, self._backlog.lost)
        )

    def _one_by_one(self, batches: list[Batch]) -> None:
        self._failure = None
        for batch in batches:
            try:
                if self._failure is None:
                    self._write([batch], None)
                else:
                    self._hold([batch])
            except OSError as error:
                self._fail(error)
                self._hold([batch])
            except Exception as error:  # noqa: BLE001 - a batch that cannot be stored
                self._damaged = f"{batch.table}: {type(error).__name__}: {error}"[:200]
                self._backlog.drop(batch)

    def missed(self, lost: Mapping[str, Lost]) -> None:
        """Counts rows that were lost before they came here; the next ``append`` reports them."""
        self._backlog.miss(lost)

    def losses(self) -> dict[str, int]:
        """Rows dropped since the start, by table."""
        return dict(self._backlog.dropped)

    @property
    def failing(self) -> bool:
        """Whether the last write failed."""
        return self._failure is not None

    def state(self) -> dict[str, Any]:
        """``state`` ok or degraded with ``reason`` and ``remedy``; ``bytes`` and ``segments`` on disk; ``hot_rows`` of
        the segment being written; ``waiting_rows`` held in memory; ``dropped_rows`` since the start.
        """
        reason, what_to_do = remedy.of_store(self._failure, self._sealer.error if self._sealer else "", self._damaged)
        try:
            self._measured, self._sizes = hot_file.sizes(self._dir_fd, self._measured)
        except OSError as error:  # the last known sizes are used
            if not reason:
                reason, what_to_do = f"cannot look at the store: {error.strerror}", remedy.of_write(error)
        return {
            "state": "degraded" if reason else "ok",
            "reason": reason or None,
            "remedy": what_to_do or None,
            **dict(zip(("bytes", "segments"), self._sizes, strict=True)),
            "hot_rows": self._rows,
            "waiting_rows": self._backlog.rows,
            "dropped_rows": self._backlog.dropped.total(),
        }

    def close(self) -> None:
        """Ends the segment and releases the lock. Waiting rows are written if possible, else counted as dropped.

        If a full disk has no room for that count either, the segment has no clean end, so the next start reports a gap.
        """
        if self._dir_fd < 0:
            return
        self._retry()
        if self._backlog.entries:
            self._backlog.trim(0)
            self._retry()
            if self._failure is not None:
                self._write_outage()
        self._outage_file.close()
        self._end(clean=not self._backlog.lost)
        if self._sealer is not None:
            self._sealer.close()
        with contextlib.suppress(OSError):  # closing releases the lock as well
            os.ftruncate(self._lock_fd, 0)
        os.close(self._lock_fd)
        os.close(self._dir_fd)
        self._dir_fd = -1

    def _retry(self) -> None:
        if self._failure is not None or self._backlog.lost:
            self._retry_at = 0
            self.append([])

    def _write(self, batches: list[Batch], tick_ns: int | None) -> None:
        """Writes all batches or none. Raises OSError; then the segment's end has not moved."""
        pieces, schemas = self._encoder.batches(batches)
        frames = pieces[:]
        if tick_ns is not None:
            pieces.append(self._encoder.tick(tick_ns))
        if not pieces:
            return
        try:
            written = hot_file.write_all(self._fd, pieces)
        except OSError:
            if os.fstat(self._fd).st_size != self._size:
                self._fd = hot_file.cut_back(self._fd, self._size)
            raise
        self._index.add(batches, frames, self._size, self._encoder.schemas)
        self._encoder.keep(schemas)
        self._size += written
        self._rows += sum(len(b.rows) for b in batches)

    def _hold(self, batches: list[Batch]) -> None:
        self._backlog.hold(Batch(b.table, copied(b.rows)) for b in batches)
        self._backlog.trim(self.limits.buffer_bytes)

    def _maintain(self) -> None:
        removed = self._fd >= 0 and not os.fstat(self._fd).st_nlink
        if removed:  # nobody could read what is written to it
            os.close(self._fd)
            self._fd = -1
            return
        if self._sealer is not None:
            self._sealer.poll()
        if (
            self._failure is None
            and self._rows
            and (self._size >= self.limits.rotate_bytes or boot_ns() - self._opened_ns >= self.limits.rotate_s * 1e9)
        ):
            self._rotate()

    def _rotate(self) -> None:
        old_fd, old_index, self._fd = self._fd, self._index, -1
        try:
            self._open_next()
        except OSError:
            self._fd = old_fd  # no room for another segment: this one grows on
            return
        hot_file.write_end(old_fd, old_index)
        os.close(old_fd)
        if self._sealer is not None:
            self._sealer.request(self._seq)
        hot_file.shed(self._dir_fd, self.limits.max_bytes)

    def _open_next(self) -> None:
        now = boot_ns()
        (real,) = apart(time.CLOCK_MONOTONIC, (time.CLOCK_REALTIME,))
        head = Encoder.head(Head(self._boot_id, self._host, self._version, now, real.offset_ns, time.time_ns()))
        fd = hot_file.begin(self._dir_fd, self._seq + 1, head)
        self._fd, self._seq, self._encoder, self._index = fd, self._seq + 1, Encoder(), Index()
        self._size, self._rows, self._opened_ns = len(head), 0, now

    def _end(self, *, clean: bool) -> None:
        if self._fd >= 0:
            if clean:
                hot_file.write_end(self._fd, self._index)
            os.close(self._fd)
            self._fd = -1
