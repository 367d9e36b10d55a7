"""The sealer: converts closed hot segments to Parquet and removes segments beyond the store's size and age.

Run as ``python -m agent.store.seal --dir-fd N --below SEQ``, a niced process that ends when done. It may be killed at
any moment: one rename publishes a segment, and the hot file is removed only after that.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from agent.batch import Loss, losses
from agent.clock.history import History
from agent.columns import NULL_I64
from agent.common import ownfiles
from agent.store import UNREADABLE, cells, segments
from agent.store.frames import FrameDecoder, FrameKind, Head
from agent.store.lifetimes import Lifetimes, running
from agent.store.retention import Retention, retain, sealed_ns
from agent.tables import TABLES

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_CHUNK_BYTES = 8 << 20


class _Writers:
    """One Parquet file per table in the current directory's ``folder``, in row groups of about 8 MB."""

    def __init__(self, folder: str, boot_id: str, host: str) -> None:
        self._folder, self._boot_id, self._host = folder, boot_id, host
        self._files: dict[str, pq.ParquetWriter] = {}
        self._waiting: dict[str, list[np.ndarray]] = {}
        self._bytes = 0
        self.tables: dict[str, dict[str, int]] = {}
        self._offsets = TABLES["clock_offset"].empty(0)

    def add(self, table: str, rows: np.ndarray) -> None:
        if table == "clock_offset":
            self._offsets = np.concatenate([self._offsets, rows])
        self._waiting.setdefault(table, []).append(rows)
        self._bytes += rows.nbytes
        low, high = int(rows["t_ns"].min()), int(rows["t_ns"].max())
        seen = self.tables.setdefault(table, {"rows": 0, "min_t_ns": low, "max_t_ns": high})
        seen.update(
            rows=seen["rows"] + len(rows), min_t_ns=min(seen["min_t_ns"], low), max_t_ns=max(seen["max_t_ns"], high)
        )
        if self._bytes >= _CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        import pyarrow.parquet as pq

        from agent.store.arrow import schema, to_arrow

        for table, parts in self._waiting.items():
            if table not in self._files:
                self._files[table] = pq.ParquetWriter(
                    f"{self._folder}/{table}.parquet", schema(table), compression="zstd"
                )
            self._files[table].write_table(to_arrow(table, np.concatenate(parts), self._boot_id, self._host))
        self._waiting, self._bytes = {}, 0

    def close(self, head: Head) -> Head:
        """Writes the rest. Each file's metadata has its origin and the wall time range of its rows. Returns the head
        with the range of all rows.
        """
        self.flush()
        clock, bounds = History.from_rows(self._offsets), []
        for table, file in self._files.items():
            its = wall_bounds(head, clock, self.tables[table]["min_t_ns"], self.tables[table]["max_t_ns"])
            metadata = {"host": head.host, "boot_id": head.boot_id, "wall_from_ns": its[0], "wall_to_ns": its[1]}
            file.add_key_value_metadata({f"tickscope.{name}": str(value) for name, value in metadata.items()})
            file.close()
            bounds.append(its)
        if not bounds:
            return head
        return head._replace(wall_from_ns=min(b[0] for b in bounds), wall_to_ns=max(b[1] for b in bounds))


def seal(seq: int, lived: Lifetimes) -> None:
    """Seals ``hot-SEQ.tsl`` of the current directory, and moves the store's clock to the segment's last tick.

    Does nothing if the file is gone: a store that grows faster than it is sealed removes its oldest segments
    (``hot_file.shed``). Raises ValueError if its head cannot be read or it has rows of an unknown table, which would be
    lost; OSError.
    """
    name, folder = segments.hot_name(seq), segments.sealing_name(seq)
    if not os.path.isdir(segments.sealed_name(seq)):
        os.mkdir(folder, 0o750)
        try:
            _convert(name, folder, lived)
        except FileNotFoundError:
            if os.path.exists(name):
                raise
            shutil.rmtree(folder)
            return
        _sync(folder)
        os.rename(folder, segments.sealed_name(seq))
        _sync(".")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name)


def _convert(name: str, folder: str, lived: Lifetimes) -> None:
    decoder = FrameDecoder()
    writers: _Writers | None = None
    last = tick = NULL_I64
    with open(name, "rb") as file:
        while data := file.read(1 << 20):
            for frame in decoder.feed(data):
                if frame.kind == FrameKind.ROWS and decoder.head is not None:
                    writers = writers or _Writers(folder, decoder.head.boot_id, decoder.head.host)
                    writers.add(frame.table, frame.rows)
                    last = max(last, int(frame.rows["t_ns"].max()))
                elif frame.kind == FrameKind.TICK:
                    tick = max(tick, frame.t_ns)
            if decoder.unknown:
                raise ValueError(
                    f"{name}: kept as it is, since this version has no table {', '.join(sorted(decoder.unknown))}"
                )
    head = decoder.head
    if head is None:
        raise ValueError(f"{name}: {decoder.corrupt or 'no head'}")
    writers = writers or _Writers(folder, head.boot_id, head.host)
    if decoder.corrupt is not None:
        writers.add("loss", losses("store", Loss("segment", from_ns=last, t_ns=max(last, head.created_ns))).rows)
    head = writers.close(head)
    counted = {table: columns for table in writers.tables if (columns := _cells(folder, table))}
    sums = {table: cells.checksum(f"{folder}/{cells.name(table)}") for table in counted}
    lived.reach(head.boot_id, head.created_ns, tick)  # not the last row: rows from other programs may have any time
    with open(f"{folder}/{segments.HEAD}", "w", encoding="utf-8") as out:
        metadata = {
            "tables": writers.tables,
            "cells": counted,
            "cells_crc32": sums,
            "torn_bytes": decoder.pending,
            "lived_ns": lived.lived_ns,
        }
        json.dump({**head._asdict(), **metadata}, out)


def wall_bounds(head: Head, clock: History, from_ns: int, to_ns: int) -> tuple[int, int]:
    """The earliest and latest wall time (Unix ns) between two CLOCK_BOOTTIME ns; NULL_I64 if unknown. clock: the
    samples of that time; if empty, the head is used.
    """
    if not len(clock):
        if head.wall_from_ns == NULL_I64:
            return NULL_I64, NULL_I64
        return head.wall_from_ns + from_ns - head.created_ns, head.wall_from_ns + to_ns - head.created_ns
    cuts = np.array(clock.segments.start_ns)
    cuts = cuts[(cuts > from_ns) & (cuts <= to_ns)]
    walls = clock.to_wall(np.concatenate([[from_ns, to_ns], cuts, cuts - 1])).ns  # a step may go either way
    walls = walls[walls != NULL_I64]
    return (int(walls.min()), int(walls.max())) if len(walls) else (NULL_I64, NULL_I64)


def _cells(folder: str, table: str) -> list[str]:
    """The columns of the table's cells; none if they cannot be made, since queries work without them.
    Raises OSError.
    """
    try:
        return cells.write(folder, table)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - Arrow's errors have no common base class
        print(f"{folder}: no cells of {table}: {error!r}", file=sys.stderr)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{folder}/{cells.name(table)}")
        return []


def _sync(folder: str) -> None:
    """Syncs a directory and its files to disk."""
    for name in os.listdir(folder) if folder != "." else ():
        _fsync(f"{folder}/{name}", os.O_RDONLY)
    _fsync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _fsync(path: str, flags: int) -> None:
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def seal_all(below: int, limits: Retention, clock: Callable[[], tuple[str, int]] = running) -> list[str]:
    """Seals every hot segment of the current directory below a sequence number, oldest first. Returns those that could
    not be read; they are left as they are.

    clock: returns the running boot's id and its CLOCK_BOOTTIME, ns. Raises OSError.
    """
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in filter(ownfiles.SEALING.fullmatch, os.listdir(fd)):
            shutil.rmtree(name)
        waiting = [seq for seq in segments.hot_files(fd) if seq < below]
        sealed = segments.listing(fd).sealed
    finally:
        os.close(fd)
    lived = Lifetimes.load() or Lifetimes(lived_ns=max(map(sealed_ns, sealed), default=0))
    retain(limits, lived)
    unreadable = []
    try:
        for seq in waiting:
            try:
                seal(seq, lived)
            except ValueError as error:
                shutil.rmtree(segments.sealing_name(seq))
                unreadable.append(str(error))
            except OSError:  # full disk: a partial result would keep it full
                shutil.rmtree(segments.sealing_name(seq), ignore_errors=True)
                raise
            retain(limits, lived)
    finally:
        boot_id, now_ns = clock()
        lived.reach(boot_id, now_ns, now_ns)
        retain(limits, lived)
        lived.save()
    return unreadable


def main() -> None:
    parser = argparse.ArgumentParser(prog="agent.store.seal", description="seal closed hot segments")
    parser.add_argument("--dir-fd", type=int, help="descriptor of the store's directory (default: the current one)")
    parser.add_argument("--below", type=int, required=True, help="seal segments with a smaller sequence number")
    for field in dataclasses.fields(Retention):
        default = None if field.default is dataclasses.MISSING else field.default
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=float, required=default is None, default=default)
    args = parser.parse_args()
    limits = Retention(**{field.name: getattr(args, field.name) for field in dataclasses.fields(Retention)})
    os.nice(10)
    os.umask(0o027)
    if args.dir_fd is not None:
        os.fchdir(args.dir_fd)
    with open(ownfiles.SEAL_LOCK, "w", encoding="utf-8") as lock:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unreadable = seal_all(args.below, limits)
            print("; ".join(unreadable), file=sys.stderr)
            sys.exit(UNREADABLE if unreadable else 0)
        sys.exit("another sealer is at work")


if __name__ == "__main__":
    main()
