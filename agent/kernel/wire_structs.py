"""Derives numpy dtypes of the kernel's wire structs from their C text, and decodes records into tables.

The layout is C's natural alignment on LP64. Padding must be explicit, so that no uninitialised byte is sent. The
derived offsets are checked by the compiler as static assertions (``assertions``) at every load.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agent.batch import Batch
from agent.columns import NULL_I64
from agent.tables import TABLES

_SCALARS = {"u8": "u1", "u16": "<u2", "u32": "<u4", "u64": "<u8", "s8": "i1", "s16": "<i2", "s32": "<i4", "s64": "<i8"}
_STRUCT = re.compile(r"struct\s+(\w+)\s*\{([^{}]*)\}\s*;")
_FIELD = re.compile(r"(struct\s+)?(\w+)\s+([\w\s,\[\]*]+?)\s*;")
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)

#: Marks the number of a process outside of our PID namespace (bpf/tickscope.h, PIDNS_OUTSIDE). No kernel has numbers
#: that high.
OUTSIDE = 1 << 30
_PIDS = frozenset(("pid", "tid", "sender_pid", "holder_pid", "waker_pid", "parent_pid"))


class WireError(Exception):
    """A wire struct that breaks the rules of bpf/events.h."""


@dataclass
class Wire:
    """The wire structs of some C texts. ``dtype(name)`` gives nested structs as nested dtypes."""

    structs: dict[str, str] = field(default_factory=dict)
    _dtypes: dict[str, np.dtype[np.void]] = field(default_factory=dict)

    @classmethod
    def read(cls, *paths: Path) -> Wire:
        """Parses the struct declarations in these C files."""
        wire = cls()
        for path in paths:
            for name, body in _STRUCT.findall(_COMMENT.sub("", path.read_text())):
                wire.structs[name] = body
        return wire

    def dtype(self, name: str) -> np.dtype[np.void]:
        """The dtype of ``struct name``. Raises WireError where it is unknown, not flat, or has implicit padding."""
        if name not in self._dtypes:
            self._dtypes[name] = self._derive(name)
        return self._dtypes[name]

    def _derive(self, name: str) -> np.dtype[np.void]:
        if name not in self.structs:
            raise WireError(f"struct {name} is declared nowhere")
        fields: list[tuple[str, object]] = []
        offset = align = 0
        for is_struct, ctype, names in _FIELD.findall(self.structs[name]):
            for declarator in names.split(","):
                match = re.fullmatch(r"\s*(\w+)\s*(?:\[(\w+)\])?\s*", declarator)
                if match is None:
                    raise WireError(f"struct {name}: cannot read '{declarator}'")
                field_name, size = match.groups()
                base = self._base(name, bool(is_struct), ctype, size)
                step = self._align(ctype, bool(is_struct))
                align = max(align, step)
                if offset % step:
                    raise WireError(f"struct {name}: implicit padding before {field_name}; declare it")
                fields.append((field_name, base))
                offset += np.dtype(base).itemsize  # type: ignore[call-overload]
        if align and offset % align:
            raise WireError(f"struct {name}: implicit padding at its end; declare it")
        return np.dtype(fields)

    def _base(self, owner: str, is_struct: bool, ctype: str, size: str | None) -> object:
        if ctype == "char" and size:
            return f"S{int(size)}"
        if is_struct:
            base: object = self.dtype(ctype)
        elif ctype in _SCALARS:
            base = _SCALARS[ctype]
        else:
            raise WireError(f"struct {owner}: type {ctype} cannot cross")
        return (base, (int(size),)) if size else base

    def _align(self, ctype: str, is_struct: bool) -> int:
        if is_struct:
            return max(self._align(t, bool(s)) for s, t, _ in _FIELD.findall(self.structs[ctype]))
        return 1 if ctype == "char" else np.dtype(_SCALARS[ctype]).itemsize

    def assertions(self, names: list[str]) -> str:
        """C text that fails to compile unless the compiler lays out these structs as numpy does."""
        lines = []
        for name in names:
            dtype = self.dtype(name)
            lines.append(f'_Static_assert(sizeof(struct {name}) == {dtype.itemsize}, "size of {name}");')
            for f in dtype.names or ():
                assert dtype.fields is not None
                offset = dtype.fields[f][1]
                lines.append(f'_Static_assert(__builtin_offsetof(struct {name}, {f}) == {offset}, "{name}.{f}");')
        return "\n".join(lines) + "\n"


class _Plan(NamedTuple):
    """How records of one dtype become rows of one table. leaves: a dtype with all leaves of the nested records. words:
    names and positions of the 64-bit integers, in a record viewed as such integers. others: the remaining columns.
    """

    leaves: np.dtype[np.void]
    words: tuple[str, ...]
    places: list[int]
    others: tuple[str, ...]
    addressed: bool


@cache
def _plan(dtype: np.dtype[np.void], table: str) -> _Plan:
    declared = TABLES[table]
    leaf_of = {name: (base, offset) for name, base, offset in _leaves(dtype)}
    flat = np.dtype(
        {
            "names": list(leaf_of),
            "formats": [base for base, _ in leaf_of.values()],
            "offsets": [offset for _, offset in leaf_of.values()],
            "itemsize": dtype.itemsize,
        }
    )
    columns = [name for name in leaf_of if name in declared.by_name]
    whole = dtype.itemsize % 8 == 0
    words = tuple(
        name
        for name in columns
        if whole and declared.by_name[name].kind == "i64" and leaf_of[name][0] == "<u8" and name not in _PIDS
    )
    return _Plan(
        flat,
        words,
        [leaf_of[name][1] // 8 for name in words],
        tuple(name for name in columns if name not in words),
        "peer" in declared.by_name and "daddr" in leaf_of and "dport" in leaf_of,
    )


def _leaves(dtype: np.dtype[np.void], at: int = 0) -> Iterator[tuple[str, np.dtype[Any], int]]:
    for name in dtype.names or ():
        assert dtype.fields is not None
        base, offset = dtype.fields[name][:2]
        if base.names:
            yield from _leaves(base, at + offset)
        else:
            yield name, base, at + offset


def decode(records: np.ndarray, table: str) -> Batch:
    """Copies same-named fields into a batch of ``table``; all-ones values become unknown.

    Fields without a column are left out; columns without a field stay unknown. u8[16] fields become addresses, and
    daddr with dport also fill the ``peer`` column.
    """
    declared, plan = TABLES[table], _plan(records.dtype, table)
    out = declared.empty(len(records))
    seen = records.view(plan.leaves)
    if plan.words:
        words = records.view(np.dtype(("<i8", (records.itemsize // 8,))))[:, plan.places]
        words[words == -1] = NULL_I64
        for i, name in enumerate(plan.words):
            out[name] = words[:, i]
    for name in plan.others:
        column, kind = seen[name], declared.by_name[name].kind
        if kind == "addr":
            out[name] = np.ascontiguousarray(column).view("V16").reshape(len(records))
        elif kind == "i64" and column.dtype.kind == "u":
            out[name] = signed(column, OUTSIDE if name in _PIDS else None)
        else:
            out[name] = column
    if plan.addressed:
        out["peer"] = make_peer(seen["daddr"], seen["dport"])
    return Batch(table, out)


def signed(column: np.ndarray, least: int | None = None) -> np.ndarray:
    """An unsigned column as i64, unknown from ``least`` on; without it, all ones are unknown."""
    unknown = column >= (np.iinfo(column.dtype).max if least is None else least)
    return np.where(unknown, NULL_I64, column.astype(np.int64))


def wire_records(records: np.ndarray) -> np.ndarray:
    """The decoder of a ring whose records are no rows yet: they become rows only together with others that arrive
    later, or with what the agent knows. Its batch are the records, shape (n,), with the fields, units and clocks that
    the comments of their wire struct in bpf/ say; all ones are unknown.
    """
    return records


def make_peer(daddr: np.ndarray, dport: np.ndarray) -> np.ndarray:
    """(n, 16) u8 and (n,) u16 in host order -> (n,) V18, the stored form of a peer; all zero if the address is."""
    raw = np.zeros((len(daddr), 18), np.uint8)
    raw[:, :16] = daddr
    raw[:, 16:] = np.ascontiguousarray(dport.astype("<u2")).view(np.uint8).reshape(-1, 2)
    raw[~np.asarray(daddr).any(axis=1)] = 0
    return raw.view("V18").reshape(len(daddr))
