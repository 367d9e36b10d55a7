"""The content of a store at one moment, read while an agent and a sealer work on it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from agent.ask.window import Window
from agent.batch import Loss, losses
from agent.columns import NULL_I64
from agent.common import host
from agent.common.clocks import boot_ns
from agent.errors import UNREACHABLE, AgentError
from agent.store import index, outage, segments
from agent.store.arrow import Gathered
from agent.store.frames import Frame, FrameDecoder, FrameKind, Head
from agent.tables import TABLES

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

#: Tables whose rows concern times other than their own.
_ALWAYS = {"clock_offset", "loss"}
#: A running agent writes more often than this.
WRITES_NS = 10_000_000_000
_HEAD_BYTES = 4096
_READ_BYTES = 1 << 20
_TRIES = 20


class Sealed(NamedTuple):
    """One sealed segment. tables: per table its rows (-1 unknown), min_t_ns and max_t_ns. thin: retention removed the
    bulk tables. cells: per table with cells (agent/store/cells.py), the columns that distinguish them. sums: the CRC-32
    of each cells file.
    """

    name: str
    head: Head
    tables: dict[str, dict[str, int]]
    thin: bool = False
    cells: Mapping[str, frozenset[str]] = {}
    sums: Mapping[str, int] = {}


@dataclass
class Snapshot:
    """hot: rows by table, in segment order, as Arrow tables. boots: boot ids, oldest first. notes: what could not be
    read.

    writer: pid of the agent that writes the store. ends: per boot, its last write, CLOCK_BOOTTIME. end_ns: the newest
    time, CLOCK_BOOTTIME of the last boot, null if the store is empty. oldest: head of the oldest complete segment, if
    earlier ones were removed or thinned. outage: the content of the outage file.
    """

    hot: dict[str, list[pa.Table]] = field(default_factory=dict)
    sealed: list[Sealed] = field(default_factory=list)
    boots: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    writer: int | None = None
    ends: dict[str, int] = field(default_factory=dict)
    end_ns: int = NULL_I64
    oldest: Head | None = None
    outage: outage.Outage | None = None


class Reader:
    """Takes snapshots of one store, again and again: of what it read before, it reads only what was added since.

    tables: those whose rows are wanted. added: tables of hot segments of which the last snapshot has rows that those
    before did not have. offsets: such rows of ``clock_offset``, with their boot.
    """

    def __init__(self, path: str | Path, tables: frozenset[str]) -> None:
        self.added: set[str] = set()
        self.offsets: list[tuple[str, np.ndarray]] = []
        self._path, self._tables = path, tables
        self._hot: dict[int, _HotRows] = {}
        self._sealed: dict[str, Sealed] = {}

    def snapshot(self, window: Window | None = None) -> Snapshot:
        """Rows of the tables in the hot segments, and the sealed segments by name. Each row occurs once, even if a
        segment is sealed meanwhile.

        window: rows and closed hot segments entirely outside of it may be left out; it must not begin before that of an
        earlier snapshot. Raises AgentError (exit 4) if the store does not exist or cannot be read.
        """
        self.added, self.offsets = set(), []
        dir_fd = segments.open_dir(self._path)
        try:
            if segments.untouched(dir_fd):
                raise segments.no_store(self._path)
            for _ in range(_TRIES):
                try:
                    return self._take(dir_fd, window or Window())
                except FileNotFoundError:
                    continue  # sealed or removed between listing and reading
        except OSError as error:
            raise segments.unreadable(self._path, error) from error
        finally:
            os.close(dir_fd)
        raise AgentError(f"the store at {self._path} changes faster than it can be read", exit_code=UNREACHABLE)

    def _take(self, dir_fd: int, window: Window) -> Snapshot:
        listed = segments.listing(dir_fd)
        taken = Snapshot(writer=segments.writer(dir_fd), outage=outage.read(dir_fd))
        lost = Gathered()
        if taken.outage is not None and (missing := taken.outage.rows()):
            lost.add("loss", missing.rows, taken.outage.boot_id, taken.outage.host)
        heads: list[tuple[int, Head]] = []
        ends: dict[str, int] = {}
        whole = [*listed.hot]
        self._hot = {seq: self._hot.get(seq) or _HotRows(self._tables, window) for seq in listed.hot}
        names = set(map(segments.sealed_name, listed.sealed))
        self._sealed = {name: one for name, one in self._sealed.items() if name in names}
        for seq in listed.hot:
            one = self._hot[seq]
            with open(segments.open_at(dir_fd, segments.hot_name(seq)), "rb", buffering=0) as file:
                if one.replaced(file.fileno()):  # the store was removed and made anew
                    one = self._hot[seq] = _HotRows(self._tables, window)
                    self.added |= self._tables
                for boot_id, table, rows in one.read(file.fileno(), window):
                    self.added.add(table)
                    if table == "clock_offset":
                        self.offsets.append((boot_id, rows))
            head = one.decoder.head
            if head is not None:
                heads.append((seq, head))
                ends[head.boot_id] = max(one.last_ns, ends.get(head.boot_id, NULL_I64))
            if one.decoder.corrupt is not None:
                taken.notes.append(
                    f"{segments.hot_name(seq)} is damaged at byte {one.decoder.offset}: {one.decoder.corrupt}; "
                    f"{one.unread} bytes are not shown"
                )
                if head is not None:
                    since_ns = one.last_ns
                    torn = Loss(segments.hot_name(seq), from_ns=since_ns, t_ns=max(since_ns, head.created_ns))
                    lost.add("loss", losses("store", torn).rows, head.boot_id, head.host)
        for seq in listed.sealed:
            one_sealed = self._head(dir_fd, segments.sealed_name(seq), taken.notes)
            if one_sealed.head.boot_id:
                heads.append((seq, one_sealed.head))
                ends[one_sealed.head.boot_id] = max(
                    ends.get(one_sealed.head.boot_id, NULL_I64),
                    *(span["max_t_ns"] for span in one_sealed.tables.values()),
                    NULL_I64,
                )
            if not one_sealed.thin:
                whole.append(seq)
            taken.sealed.append(one_sealed)
        if whole and min(whole) > 1:
            taken.oldest = next((head for seq, head in sorted(heads) if seq in whole), None)
        taken.boots = list(dict.fromkeys(head.boot_id for _, head in sorted(heads, key=lambda h: h[0])))
        taken.ends = ends
        taken.end_ns = ends.get(taken.boots[-1], NULL_I64) if taken.boots else NULL_I64
        _note_silence(taken, heads, lost)
        for tables in (lost.tables(), *(one.tables() for one in self._hot.values())):
            for table, pieces in tables.items():
                taken.hot.setdefault(table, []).extend(pieces)
        return taken

    def _head(self, dir_fd: int, name: str, notes: list[str]) -> Sealed:
        """A sealed segment; notes gets what is wrong with it. Raises FileNotFoundError if it was removed."""
        if name not in self._sealed:
            try:
                self._sealed[name] = _sealed(name, json.loads(segments.read_bytes(dir_fd, f"{name}/{segments.HEAD}")))
            except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
                # Removed with its segment, which the caller handles, or damaged: the rows are in other files.
                notes.append(
                    f"{name}/{segments.HEAD} is damaged ({type(error).__name__}): its rows are shown, their order"
                    " between boots may be wrong"
                )
                return _headless(name, segments.names_in(dir_fd, name))
        return self._sealed[name]


class _HotRows:
    """What was read of one hot segment. last_ns: its newest time, as far as known. unread: bytes behind damage.

    tables, window: as for ``Reader``.
    """

    def __init__(self, tables: frozenset[str], window: Window) -> None:
        self.decoder = FrameDecoder(tables)
        self.last_ns, self.unread = NULL_I64, 0
        self._tables, self._window = tables, window
        self._new, self._indexed = True, False
        self._file: tuple[int, int] | None = None
        self._rows = Gathered()

    def replaced(self, fd: int) -> bool:
        """Whether this is another file than the one that was read before."""
        now = os.fstat(fd)
        known, self._file = self._file, (now.st_dev, now.st_ino)
        return known is not None and (self._file != known or now.st_size < self.decoder.offset)

    def read(self, fd: int, window: Window) -> Iterator[tuple[str, str, np.ndarray]]:
        """Reads what was appended, and forgets rows before the window. Yields new rows with their boot and table."""
        for frame in self._frames(fd):
            head = self.decoder.head
            if frame.kind == FrameKind.ROWS and head is not None:
                self._rows.add(frame.table, frame.rows, head.boot_id, head.host)
                self.last_ns = max(self.last_ns, int(frame.rows["t_ns"].max()))
                yield head.boot_id, frame.table, frame.rows
            elif frame.kind == FrameKind.TICK:
                self.last_ns = max(self.last_ns, frame.t_ns)
        # Of the first row of what it collected only the newest time is known.
        self._rows.forget(lambda table, boot, last_ns: not _always(table) and window.misses(boot, NULL_I64, last_ns))

    def tables(self) -> dict[str, list[pa.Table]]:
        return self._rows.tables()

    def _frames(self, fd: int) -> Iterator[Frame]:
        """The frames that were not read yet, up to the first damaged one."""
        if self.decoder.ended or self.decoder.corrupt is not None:
            return
        if self._new:
            places, last_ns, self._indexed = _wanted(fd, self._tables, self._window)
            self._new = False
            self.last_ns = max(self.last_ns, last_ns)
        elif self._indexed:
            return
        else:
            self.decoder.rewind()  # the writer may have cut off a torn tail
            places = [(self.decoder.offset, os.fstat(fd).st_size)]
        before = self.decoder.offset
        yield from _frames(fd, places, self.decoder)
        self.unread = sum(end - start for start, end in places) - (self.decoder.offset - before)


def _always(table: str) -> bool:
    """Whether the table's rows concern times other than their own."""
    return table in _ALWAYS or bool(TABLES[table].as_of)


def snapshot(path: str | Path, tables: frozenset[str], window: Window | None = None) -> Snapshot:
    """One snapshot: see ``Reader``."""
    return Reader(path, tables).snapshot(window)


def _note_silence(taken: Snapshot, heads: list[tuple[int, Head]], hot: Gathered) -> None:
    """Adds a loss of unknown size if an agent lives but does not write, and could not report that (a disk that is
    read-only, fails or hangs; a stopped process).
    """
    if taken.writer is None or taken.outage is not None or not taken.boots or taken.boots[-1] != host.boot_id():
        return
    now_ns, began_ns = boot_ns(), segments.started_ns(taken.writer)
    head = max(heads)[1]
    wrote_ns = max(taken.end_ns, head.created_ns)
    if began_ns is None or began_ns > wrote_ns or now_ns - wrote_ns < WRITES_NS:
        return
    missing = losses("store", Loss("agent", None, wrote_ns, now_ns))
    hot.add("loss", missing.rows, head.boot_id, head.host)
    taken.notes.append(
        f"the agent (pid {taken.writer}) is running, but has written nothing for {(now_ns - wrote_ns) // 10**9} s:"
        " `tickscope status` says why"
    )


def _wanted(fd: int, tables: frozenset[str], window: Window) -> tuple[list[tuple[int, int]], int, bool]:
    """The parts of a hot segment, (start, end) in bytes, with rows of the tables; the newest time of any row, as far as
    the index has it; whether there is an index, so that nothing is appended any more.
    """
    try:
        spans = index.read(fd)
    except (OverflowError, TypeError, ValueError):
        spans = None
    start = FrameDecoder()
    list(start.feed(os.pread(fd, _HEAD_BYTES, 0)))
    if spans is None or start.head is None:
        return [(0, os.fstat(fd).st_size)], NULL_I64, False
    boot = start.head.boot_id
    wanted = [
        span
        for table, span in spans.items()
        if table in tables and (_always(table) or not window.misses(boot, span.min_ns, span.max_ns))
    ]
    first = min((span.places[0] for span in spans.values() if span.places), default=_HEAD_BYTES)
    return index.runs(wanted, first), max((span.max_ns for span in spans.values()), default=NULL_I64), True


def _frames(fd: int, places: list[tuple[int, int]], decoder: FrameDecoder) -> Iterator[Frame]:
    """The frames in these parts of a file, read by the megabyte, up to the first damaged one."""
    for start, end in places:
        while start < end and decoder.corrupt is None and (data := os.pread(fd, min(end - start, _READ_BYTES), start)):
            start += len(data)
            yield from decoder.feed(data)


def boots(path: str | Path) -> list[str]:
    """Boot ids of a store, oldest first. Raises AgentError as ``snapshot``."""
    return snapshot(path, frozenset(), Window()).boots


def _sealed(name: str, doc: dict[str, Any]) -> Sealed:
    tables = {t: {key: int(span[key]) for key in ("rows", "min_t_ns", "max_t_ns")} for t, span in doc["tables"].items()}
    sums = dict(doc.get("cells_crc32", {}))
    counted = {
        t: frozenset(map(str, columns)) for t, columns in doc.get("cells", {}).items() if t in tables and t in sums
    }
    return Sealed(name, Head.of(doc), tables, doc.get("thin") is True, counted, sums)


def _headless(name: str, files: list[str]) -> Sealed:
    tables = [file.removesuffix(".parquet") for file in files if file.endswith(".parquet")]
    unknown = {"rows": -1, "min_t_ns": -(1 << 62), "max_t_ns": 1 << 62}
    return Sealed(name, Head("", "", "", 0, 0), dict.fromkeys(tables, unknown))
