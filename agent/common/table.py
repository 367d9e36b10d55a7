"""A table's declaration: its columns, and the dtype of its batches; and all tables by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from agent.columns import Column, enum, i64, text

if TYPE_CHECKING:
    import numpy as np

T_NS = i64("t_ns", "time of the event, CLOCK_BOOTTIME", "ns")

#: Columns of every query result that are derived and not stored.
DERIVED = (
    text("boot_id", 36, "boot id; t_ns is CLOCK_BOOTTIME of this boot", "host.boot.id"),
    i64("wall_ns", "wall time (CLOCK_REALTIME) as Unix time, through the offset history", "ns"),
    i64("wall_err_ns", "error bound of wall_ns", "ns"),
    enum(
        "wall_state",
        "exact ambiguous skipped extrapolated",
        "ambiguous: that wall time occurred twice, around a backward step; extrapolated: no agent watched the clock"
        " then, so a step may be missing",
    ),
    i64("wall_alt_ns", "if ambiguous: the other wall time, with the offset on the other side of the step", "ns"),
    text("host", 64, "host name", "host.name"),
)


@dataclass(frozen=True)
class Table:
    """A table: its name, a one-line description, its columns, and the column that `--group-by` and `--top` measure.

    latest_by: if set, rows of one boot that are equal in that column are states of one object, and queries show the
    latest. as_of: if set, a state is a set of rows, with the time of that state (CLOCK_BOOTTIME ns) in this column, and
    a query's window applies to it.
    """

    name: str
    meaning: str
    columns: tuple[Column, ...]
    measure: str = ""
    latest_by: str = ""
    as_of: str = ""

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """The packed structured dtype of a batch."""
        import numpy as np

        return np.dtype([(c.name, c.dtype) for c in self.columns])

    @cached_property
    def by_name(self) -> dict[str, Column]:
        return {c.name: c for c in self.columns}

    def empty(self, n: int) -> np.ndarray:
        """n rows with every value unknown; shape (n,), dtype ``self.dtype``."""
        import numpy as np

        from agent.common.copies import opaque

        rows = np.empty(n, self._unknown.dtype)
        opaque(rows)[:] = opaque(self._unknown)
        return rows

    @cached_property
    def _unknown(self) -> np.ndarray:
        import numpy as np

        row = np.zeros(1, self.dtype)
        for c in self.columns:
            if c.kind in ("i64", "f64", "bool", "enum"):
                row[c.name] = c.null
        return row

    def code(self, column: str, name: str) -> int:
        """The stored code of an enum value, for example ``code("result", "refused")``."""
        return self.by_name[column].code(name)


class Tables(Mapping[str, Table]):
    """Tables by name. Tables can be added until ``freeze``; after it, derived data may be kept."""

    def __init__(self, tables: Iterable[Table]) -> None:
        self._tables: dict[str, Table] = {}
        self._frozen = False
        for one in tables:
            self.add(one)

    def add(self, one: Table) -> None:
        """Adds a table. Adding the same table again changes nothing. Raises ValueError for an invalid table,
        RuntimeError after ``freeze``.
        """
        if self._tables.get(one.name) == one:
            return
        if self._frozen:
            raise RuntimeError(f"table {one.name}: tables are added before the start")
        if one.name in self._tables:
            raise ValueError(f"table {one.name}: there is another one of that name")
        names = [column.name for column in one.columns]
        wrong = next((name for name in (one.name, *names) if not re.fullmatch(r"[a-z][a-z0-9_]*", name)), None)
        if wrong is not None:
            raise ValueError(f"table {one.name}: {wrong!r} is no name (small letters, digits, underscores)")
        if names[:1] != ["t_ns"]:
            raise ValueError(f"table {one.name}: its first column is t_ns")
        twice = next((name for name in names if (names + [c.name for c in DERIVED]).count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"table {one.name}: there is another column {twice}")
        if unknown := {one.measure, one.latest_by, one.as_of} - {"", *names}:
            raise ValueError(f"table {one.name}: there is no column {unknown.pop()}")
        self._tables[one.name] = one

    def freeze(self) -> None:
        """Ends additions. Called at the agent's start."""
        self._frozen = True

    def __getitem__(self, name: str) -> Table:
        return self._tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)
