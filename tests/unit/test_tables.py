"""Tables can be added before the start, then no more; and only such as queries, files and exports can hold."""

from __future__ import annotations

import pytest

from agent.columns import Column, i64, text
from agent.common.table import T_NS, Table, Tables
from agent.tables import TABLES

WIDGETS = Table(
    "widgets",
    "what a probe of somebody's counts",
    (T_NS, i64("made", "widgets"), text("colour", 8, "theirs")),
    measure="made",
)


def test_a_table_that_is_added_is_like_the_others() -> None:
    tables = Tables(TABLES.values())
    tables.add(WIDGETS)
    tables.add(WIDGETS)
    assert list(tables)[-1] == "widgets" and len(tables) == len(TABLES) + 1
    assert tables["widgets"].empty(2).dtype.names == ("t_ns", "made", "colour")
    assert "widgets" not in TABLES


def test_after_the_start_no_table_is_added() -> None:
    tables = Tables([WIDGETS])
    tables.freeze()
    tables.add(WIDGETS)
    with pytest.raises(RuntimeError, match="table gadgets: tables are added before the start"):
        tables.add(Table("gadgets", "", (T_NS,)))
    assert list(tables) == ["widgets"]


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (Table("widgets", "another", (T_NS,)), "there is another one of that name"),
        (Table("x; DROP", "", (T_NS,)), "'x; DROP' is no name"),
        (Table("gadgets", "", (T_NS, i64("a-b", ""))), "'a-b' is no name"),
        (Table("gadgets", "", (i64("made", ""),)), "its first column is t_ns"),
        (Table("gadgets", "", (T_NS, i64("made", ""), i64("made", ""))), "another column made"),
        (Table("gadgets", "", (T_NS, i64("wall_ns", ""))), "another column wall_ns"),
        (Table("gadgets", "", (T_NS,), measure="made"), "there is no column made"),
        (Table("gadgets", "", (T_NS,), latest_by="id"), "there is no column id"),
    ],
)
def test_a_table_that_cannot_be_is_refused(table: Table, why: str) -> None:
    tables = Tables([WIDGETS])
    with pytest.raises(ValueError, match=why):
        tables.add(table)
    assert list(tables) == ["widgets"]


def test_every_table_of_the_agent_can_be() -> None:
    assert list(Tables(TABLES.values())) == list(TABLES)
    assert all(isinstance(column, Column) for table in TABLES.values() for column in table.columns)
