"""What a store holds at one moment, read while an agent and a sealer work on it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agent.batch import make
from agent.columns import NULL_I64
from agent.errors import UNREACHABLE, AgentError
from agent.store import segments
from agent.store.frames import Decoder, Head, Kind
from agent.tables import TABLES

_TRIES = 20


class HotRows(NamedTuple):
    boot_id: str
    host: str
    rows: np.ndarray


class Sealed(NamedTuple):
    """One sealed segment; tables: per table its rows (-1 unknown), min_t_ns and max_t_ns. thin: retention left no other tables."""

    name: str
    head: Head
    tables: dict[str, dict[str, int]]
    thin: bool = False


@dataclass
class Snapshot:
    """hot: rows by table, in segment order. boots: boot ids, oldest first. notes: what could not be read, in words.

    writer: pid of the agent that adds to it. end_ns: the newest time, CLOCK_BOOTTIME of the last boot, null where nothing is in it.
    oldest: head of the oldest whole segment, where there were some before it that are removed, or thin.
    """

    hot: dict[str, list[HotRows]] = field(default_factory=dict)
    sealed: list[Sealed] = field(default_factory=list)
    boots: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    writer: int | None = None
    end_ns: int = NULL_I64
    oldest: Head | None = None


def snapshot(path: str | Path, tables: frozenset[str]) -> Snapshot:
    """Rows of the given tables in the hot segments, and the sealed ones by name; each row once, whatever happens meanwhile.

    Raises AgentError (exit 4) where the store does not exist or cannot be read.
    """
    dir_fd = segments.open_dir(path)
    try:
        if segments.untouched(dir_fd):
            raise segments.no_store(path)
        for _ in range(_TRIES):
            try:
                return _take(dir_fd, tables)
            except FileNotFoundError:
                continue  # A segment was sealed or removed between listing and reading.
    except OSError as error:
        raise AgentError(f"cannot read the store at {path}: {error.strerror}",
                         remedy="run as root or as a member of the group tickscope", exit_code=UNREACHABLE) from error
    finally:
        os.close(dir_fd)
    raise AgentError(f"the store at {path} changes faster than it can be read", exit_code=UNREACHABLE)


def _take(dir_fd: int, tables: frozenset[str]) -> Snapshot:
    listed = segments.listing(dir_fd)
    taken = Snapshot(writer=segments.writer(dir_fd))
    heads: list[tuple[int, Head]] = []
    ends: dict[str, int] = {}
    whole = [*listed.hot]
    for seq in listed.hot:
        decoder, last = Decoder(tables), NULL_I64
        for frame in decoder.feed(segments.read_bytes(dir_fd, segments.hot_name(seq))):
            if frame.kind == Kind.ROWS and decoder.head is not None:
                taken.hot.setdefault(frame.table, []).append(HotRows(decoder.head.boot_id, decoder.head.host, frame.rows))
                last = max(last, int(frame.rows["t_ns"].max()))
            elif frame.kind == Kind.TICK:
                last = max(last, frame.t_ns)
        if decoder.head is not None:
            heads.append((seq, decoder.head))
            ends[decoder.head.boot_id] = max(last, ends.get(decoder.head.boot_id, NULL_I64))
        if decoder.corrupt is not None:
            taken.notes.append(f"{segments.hot_name(seq)} is damaged at byte {decoder.offset}: {decoder.corrupt}; "
                               f"{decoder.pending} bytes are not shown")
            if decoder.head is not None:
                lost = make("loss", 1, t_ns=max(last, decoder.head.created_ns), stage=TABLES["loss"].code("stage", "store"),
                            source=segments.hot_name(seq).encode(), from_ns=last)  # fmt: skip
                taken.hot.setdefault("loss", []).append(HotRows(decoder.head.boot_id, decoder.head.host, lost.rows))
    for seq in listed.sealed:
        name = segments.sealed_name(seq)
        try:
            one = _sealed(name, json.loads(segments.read_bytes(dir_fd, f"{name}/{segments.HEAD}")))
            heads.append((seq, one.head))
            ends[one.head.boot_id] = max(ends.get(one.head.boot_id, NULL_I64), *(span["max_t_ns"] for span in one.tables.values()), NULL_I64)
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
            # Gone with its segment, which is for the caller, or damaged: the rows are in other files.
            one = _headless(name, segments.names_in(dir_fd, name))
            taken.notes.append(f"{name}/{segments.HEAD} is damaged ({type(error).__name__}): its rows are shown, their order between boots may be wrong")
        if not one.thin:
            whole.append(seq)
        taken.sealed.append(one)
    if whole and min(whole) > 1:
        taken.oldest = next((head for seq, head in sorted(heads) if seq in whole), None)
    taken.boots = list(dict.fromkeys(head.boot_id for _, head in sorted(heads, key=lambda h: h[0])))
    taken.end_ns = ends.get(taken.boots[-1], NULL_I64) if taken.boots else NULL_I64
    return taken


def _sealed(name: str, doc: dict[str, Any]) -> Sealed:
    tables = {t: {key: int(span[key]) for key in ("rows", "min_t_ns", "max_t_ns")} for t, span in doc["tables"].items()}
    return Sealed(name, Head(*(doc[field] for field in Head._fields)), tables, doc.get("thin") is True)


def _headless(name: str, files: list[str]) -> Sealed:
    tables = [file.removesuffix(".parquet") for file in files if file.endswith(".parquet")]
    unknown = {"rows": -1, "min_t_ns": -(1 << 62), "max_t_ns": 1 << 62}
    return Sealed(name, Head("", "", "", 0, 0), dict.fromkeys(tables, unknown))


def merged(parts: list[HotRows]) -> Iterator[HotRows]:
    """The same rows with one array for each run of parts of one boot and host."""
    start = 0
    for at in range(1, len(parts) + 1):
        if at == len(parts) or parts[at][:2] != parts[start][:2]:
            yield HotRows(*parts[start][:2], np.concatenate([p.rows for p in parts[start:at]]))
            start = at
