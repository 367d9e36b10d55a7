"""The hot store: what the agent appends, crash-safe, one writer.

A failing disk never stops the agent: rows wait in a bounded buffer, the oldest are dropped and counted by table, and once
writing works again a ``loss`` row a table says how many went missing and between which times.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from agent.batch import Batch, make
from agent.columns import NULL_I64
from agent.errors import UNREACHABLE, AgentError
from agent.store import segments
from agent.store.frames import Decoder, Encoder, Head, Kind
from agent.store.spawn import Limits, SealerProcess
from agent.tables import TABLES

#: Bytes: 60 us or so. A kernel without preemption lets nobody else have the processor during a write.
_AT_ONCE = 256 << 10
_RETRY_NS = 1_000_000_000
_STORE = TABLES["loss"].code("stage", "store")


def _boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _losses(boot: Iterable[tuple[str, int, int, int]]) -> Batch:
    """Loss rows from (source, count, from_ns, to_ns), their t_ns being to_ns where known."""
    lost = list(boot)
    source, count, start, end = (list(column) for column in zip(*lost, strict=True))
    times = [e if e != NULL_I64 else s for s, e in zip(start, end, strict=True)]
    return make("loss", len(lost), t_ns=times, stage=_STORE, source=source, count=count, from_ns=start, to_ns=end)


class HotStore:
    """Appends batches to ``hot-SEQ.tsl`` in a directory. A Sink (agent/batch.py), for the agent's one thread.

    where: the directory: a descriptor opened before privileges were dropped (duplicated here), or a path (created).
    seal_command: argv of the sealer; None for this interpreter; empty for no sealing at all.
    Raises AgentError (exit 4) where another process writes this store, or the directory cannot be used.
    """

    name = "store"

    def __init__(self, where: int | str | Path, boot_id: str, host: str, *, version: str = "", limits: Limits | None = None,
                 seal_command: Sequence[str] | None = None) -> None:
        self.limits = limits or Limits()
        self._boot_id, self._host, self._version = boot_id, host, version
        self._held: list[Batch] = []
        self._held_bytes = 0
        self._dropped: dict[str, int] = {}
        self._outage: dict[str, tuple[int, int, int]] = {}
        self._failure: OSError | None = None
        self._retry_at = 0
        self._fd = -1
        self._measured: tuple[list[int], int] = ([], 0)
        self._dir_fd = os.dup(where) if isinstance(where, int) else _make_dir(where)
        try:
            self._lock_fd = _lock(self._dir_fd)
            self._sealer = SealerProcess(self._dir_fd, self.limits, seal_command) if seal_command is None or seal_command else None
            self._begin()
        except BaseException:
            os.close(self._dir_fd)
            raise

    def _begin(self) -> None:
        """Open the first segment of this run; a predecessor that did not close its own leaves a loss row."""
        hot = segments.hot_files(self._dir_fd)
        self._seq = max([*hot, *segments.listing(self._dir_fd).sealed], default=0)
        crash = _crash(self._dir_fd, self._seq) if self._seq in hot else None
        try:
            if crash is not None and crash[0] is not None and crash[0].boot_id != self._boot_id:
                self._close_old_boot(*crash)
            self._open_next()
        except OSError as error:
            os.close(self._lock_fd)
            raise AgentError(f"cannot write the store: {error.strerror}", remedy=_remedy(error), exit_code=UNREACHABLE) from error
        if crash is not None and (crash[0] is None or crash[0].boot_id == self._boot_id):
            self.append([_losses([("agent", NULL_I64, crash[1], _boot_ns())])])
        if self._sealer is not None and hot:
            self._sealer.request(self._seq)

    def _close_old_boot(self, head: Head | None, last_ns: int) -> None:
        """What an earlier boot's agent lost lies on that boot's clock, so it becomes a segment of that boot."""
        assert head is not None
        self._seq += 1
        encoder = Encoder()
        pieces, _ = encoder.batches([_losses([("agent", NULL_I64, last_ns, NULL_I64)])])
        fd = segments.open_at(self._dir_fd, segments.hot_name(self._seq), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        try:
            os.write(fd, b"".join([encoder.head(head._replace(created_ns=last_ns)), *pieces, encoder.end()]))
        finally:
            os.close(fd)

    def offer(self, batch: Batch) -> None:
        self.append([batch])

    def append(self, batches: Iterable[Batch], tick_ns: int | None = None) -> None:
        """Store rows and, with ``tick_ns``, the watermark to which the correlator was then advanced. Never raises OSError.

        Takes about a third of a millisecond a megabyte. Rows are copied where they must wait.
        """
        new = [b for b in batches if len(b.rows)]
        if self._failure is not None and _boot_ns() < self._retry_at:
            self._hold(new)
            return
        try:
            self._maintain()
            if self._fd < 0:
                self._open_next()
            self._write([*self._held, *self._untold(), *new], tick_ns)
            self._held, self._held_bytes, self._outage, self._failure = [], 0, {}, None
        except OSError as error:
            self._failure = error
            self._retry_at = _boot_ns() + _RETRY_NS
            self._hold(new)

    def losses(self) -> dict[str, int]:
        """Rows dropped since the start, by table."""
        return dict(self._dropped)

    def state(self) -> dict[str, object]:
        """``state`` ok or degraded with ``reason`` and ``remedy``; ``bytes`` and ``segments`` on disk; ``hot_rows`` of the
        segment being written; ``waiting_rows`` held in memory; ``dropped_rows`` since the start."""
        reason, remedy = "", ""
        if self._failure is not None:
            reason, remedy = f"cannot write: {self._failure.strerror}", _remedy(self._failure)
        elif self._sealer is not None and self._sealer.error:
            reason, remedy = f"cannot seal: {self._sealer.error}", _seal_remedy(self._sealer.error)
        listed = segments.listing(self._dir_fd)
        if listed.sealed != self._measured[0]:
            self._measured = listed.sealed, sum(segments.tree_bytes(self._dir_fd, segments.sealed_name(s)) for s in listed.sealed)
        return {"state": "degraded" if reason else "ok", "reason": reason or None, "remedy": remedy or None,
                "bytes": self._measured[1] + self._hot_bytes(), "segments": len(listed.hot) + len(listed.sealed),
                "hot_rows": self._rows, "waiting_rows": sum(len(b.rows) for b in self._held),
                "dropped_rows": sum(self._dropped.values())}

    def close(self) -> None:
        """End the segment and give up the lock. What still waits is tried once more, then counted as dropped.

        Where a full disk has no room for that count either, the segment does not end cleanly, so that the next start reports a gap.
        """
        if self._dir_fd < 0:
            return
        self._retry()
        if self._held:
            while self._held:
                self._drop_oldest()
            self._retry()
        self._end(clean=not self._outage)
        if self._sealer is not None:
            self._sealer.close()
        os.ftruncate(self._lock_fd, 0)
        os.close(self._lock_fd)
        os.close(self._dir_fd)
        self._dir_fd = -1

    def _retry(self) -> None:
        if self._failure is not None:
            self._retry_at = 0
            self.append([])

    def _write(self, batches: list[Batch], tick_ns: int | None) -> None:
        """All or nothing. Raises OSError; then the segment ends where it ended before."""
        pieces, schemas = self._encoder.batches(batches)
        if tick_ns is not None:
            pieces.append(self._encoder.tick(tick_ns))
        if not pieces:
            return
        try:
            written = _write_all(self._fd, pieces)
        except OSError:
            if os.fstat(self._fd).st_size != self._size:
                self._cut_back()
            raise
        self._encoder.keep(schemas)
        self._size += written
        self._rows += sum(len(b.rows) for b in batches)

    def _cut_back(self) -> None:
        """Remove a half-written frame; a segment that cannot be mended is left as it is, torn, and another begun."""
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:
            os.close(self._fd)
            self._fd = -1

    def _hold(self, batches: list[Batch]) -> None:
        self._held += [Batch(b.table, b.rows.copy()) for b in batches]
        self._held_bytes += sum(b.rows.nbytes for b in batches)
        while self._held_bytes > self.limits.buffer_bytes:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        table, rows = self._held.pop(0)
        self._held_bytes -= rows.nbytes
        count, start, end = self._outage.get(table, (0, int(rows["t_ns"].min()), int(rows["t_ns"].max())))
        self._outage[table] = (count + len(rows), min(start, int(rows["t_ns"].min())), max(end, int(rows["t_ns"].max())))
        self._dropped[table] = self._dropped.get(table, 0) + len(rows)

    def _untold(self) -> list[Batch]:
        """What says which rows were dropped since writing failed."""
        return [_losses((table, *lost) for table, lost in self._outage.items())] if self._outage else []

    def _maintain(self) -> None:
        if self._fd >= 0 and not os.fstat(self._fd).st_nlink:  # Somebody removed the file: nobody could read what goes into it.
            os.close(self._fd)
            self._fd = -1
            return
        if self._sealer is not None:
            self._sealer.poll()
        if self._failure is None and self._rows and (
                self._size >= self.limits.rotate_bytes or _boot_ns() - self._opened_ns >= self.limits.rotate_s * 1e9):
            self._rotate()

    def _rotate(self) -> None:
        old_fd, self._fd = self._fd, -1
        try:
            self._open_next()
        except OSError:
            self._fd = old_fd  # No room for another segment: this one grows on.
            return
        _write_end(old_fd)
        os.close(old_fd)
        if self._sealer is not None:
            self._sealer.request(self._seq)
        self._shed()

    def _shed(self) -> None:
        """Where sealing does not work, retention is the store's own: closed hot segments beyond max_bytes go, oldest first."""
        closed = segments.hot_files(self._dir_fd)[:-1]
        while closed and self._hot_bytes() > self.limits.max_bytes:
            with contextlib.suppress(FileNotFoundError):  # Sealed meanwhile.
                os.unlink(segments.hot_name(closed.pop(0)), dir_fd=self._dir_fd)

    def _open_next(self) -> None:
        name = segments.hot_name(self._seq + 1)
        now = _boot_ns()
        real_mono = time.clock_gettime_ns(time.CLOCK_REALTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        head = Encoder.head(Head(self._boot_id, self._host, self._version, now, real_mono))
        fd = segments.open_at(self._dir_fd, name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        try:
            if os.write(fd, head) < len(head):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.close(fd)
            os.unlink(name, dir_fd=self._dir_fd)
            raise
        self._fd, self._seq, self._encoder = fd, self._seq + 1, Encoder()
        self._size, self._rows, self._opened_ns = len(head), 0, now

    def _end(self, *, clean: bool) -> None:
        if self._fd >= 0:
            if clean:
                _write_end(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _hot_bytes(self) -> int:
        total = 0
        for seq in segments.hot_files(self._dir_fd):
            try:
                total += os.stat(segments.hot_name(seq), dir_fd=self._dir_fd).st_size
            except FileNotFoundError:
                continue  # Sealed meanwhile.
        return total


def _write_all(fd: int, pieces: Iterable[bytes | memoryview]) -> int:
    """Returns the bytes written. Raises OSError, with some of them written."""
    total = 0
    for piece in pieces:
        rest = memoryview(piece)
        total += len(rest)
        while rest:
            rest = rest[os.write(fd, rest[:_AT_ONCE]) :]
    return total


def _write_end(fd: int) -> None:
    """Mark a clean close. On a disk that refuses it the mark is missing, which the next start reports as a possible gap."""
    size = os.fstat(fd).st_size
    end = Encoder.end()
    with contextlib.suppress(OSError):
        if os.write(fd, end) < len(end):
            os.ftruncate(fd, size)


def _crash(dir_fd: int, seq: int) -> tuple[Head | None, int] | None:
    """The head and the last time seen (CLOCK_BOOTTIME ns) of a segment that lacks its END; None where it has one."""
    decoder = Decoder()
    last = NULL_I64
    with open(segments.open_at(dir_fd, segments.hot_name(seq)), "rb") as file:
        while data := file.read(1 << 20):
            for frame in decoder.feed(data):
                if frame.kind == Kind.ROWS:
                    last = max(last, int(frame.rows["t_ns"].max()))
                elif frame.kind == Kind.TICK:
                    last = max(last, frame.t_ns)
    if decoder.ended:
        return None
    if last == NULL_I64 and decoder.head is not None:
        last = decoder.head.created_ns
    return decoder.head, last


def _make_dir(path: str | Path) -> int:
    try:
        os.makedirs(path, 0o750, exist_ok=True)
    except OSError as error:
        raise AgentError(f"cannot create the store at {path}: {error.strerror}",
                         remedy="name another place: --store DIR", exit_code=UNREACHABLE) from error
    return segments.open_dir(path)


def _lock(dir_fd: int) -> int:
    """Take the writer's lock. Raises AgentError (exit 4) naming the process that holds it."""
    try:
        fd = segments.open_at(dir_fd, segments.LOCK, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise AgentError(f"cannot write the store: {error.strerror}", remedy=_remedy(error), exit_code=UNREACHABLE) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(fd, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise AgentError(f"another agent writes this store: pid {holder}",
                         remedy=f"stop it (kill {holder}), or name another place: --store DIR", exit_code=UNREACHABLE) from error
    os.ftruncate(fd, 0)
    try:
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        if error.errno != errno.ENOSPC:  # A full disk: the lock holds all the same, only nameless.
            raise
    return fd


def _seal_remedy(reason: str) -> str:
    if "No module named" in reason:
        return "python3 -m pip install pyarrow (in the agent's environment)"
    if os.strerror(errno.ENOSPC) in reason or os.strerror(errno.EDQUOT) in reason:
        return "free space on the store's file system, or lower the store's max_bytes; it is tried again every 30 s"
    if ".tsl: " in reason:
        return "move the damaged segment away; the others are sealed"
    return "it is tried again every 30 s; nothing is lost meanwhile"


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free space on the store's file system, or lower the store's max_bytes"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "chown -R tickscope:tickscope the store's directory"
    if error.errno == errno.ENOENT:
        return "the store's directory was removed: restart tickscope"
    if error.errno == errno.EROFS:
        return "mount the store's file system read-write"
    return "look at the kernel log (dmesg) for this disk, or name another place: --store DIR"
