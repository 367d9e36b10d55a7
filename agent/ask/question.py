"""What a verb asks for: rows of one table, or groups of them. Pure; every source of rows (agent/ask/row_source.py)
answers the same question alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

Op = Literal["=", "<>", "<", "<=", ">", ">=", "in", "starts"]
How = Literal["count", "distinct", "sum", "min", "max", "last", "all"]

#: By boot in the order of boots, then by CLOCK_BOOTTIME.
TIME = ("boot_id", "t_ns")
NEWEST = ("-boot_id", "-t_ns")


@dataclass(frozen=True)
class Where:
    """A condition on one column. value: text or a number, for ``in`` a tuple of them; an unknown value meets it only
    with ``or_unknown``.
    """

    column: str
    op: Op
    value: Any
    or_unknown: bool = False


@dataclass(frozen=True)
class Condition:
    """A condition as a user writes it: SQL over the table's columns."""

    text: str


@dataclass(frozen=True)
class GroupValue:
    """A value of each group: how many rows (``count``), or how many values a column has (``distinct``), their sum, the
    smallest, largest or latest, or whether all are true.
    where: of the rows that meet it only.
    """

    name: str
    how: How
    column: str = ""
    where: Where | None = None


@dataclass(frozen=True)
class Question:
    """Rows of a table, or, with ``group`` or ``values``, one a group.

    columns: which to give, in this order; by default all of the table's, or the group's and then its values. where:
    conditions that all hold.
    within: only rows of the source's window. latest: of the rows that are equal in these columns, those of the newest
    time only. group: columns that are equal within a group. order: columns (or names of values) to sort by, unknown
    last, ``-`` before a name for the largest first;
    ``boot_id`` means boots from the oldest on. largest: a column whose largest absolute values come before that. limit:
    at most so many.
    """

    table: str
    columns: tuple[str, ...] = ()
    where: tuple[Where | Condition, ...] = ()
    within: bool = True
    latest: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    values: tuple[GroupValue, ...] = ()
    order: tuple[str, ...] = TIME
    largest: str = ""
    limit: int | None = None

    def newest(self, limit: int) -> Question:
        """The same, of the newest rows; the newest first."""
        return replace(self, order=NEWEST, limit=limit)


@dataclass(frozen=True)
class Spread:
    """How a table's measure is spread in each group: dictionaries of the group's columns, then count, p50, p90, p99 and
    max, the largest count first.

    how: how the percentiles were made, in words. error: their relative error at most (0.01 is one percent), 0 where
    they are the values of rows, None where it is not bounded so.
    """

    rows: list[dict[str, Any]]
    how: str
    error: float | None = 0.0
