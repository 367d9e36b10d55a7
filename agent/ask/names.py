"""Names that a user types: checked, with the nearest ones offered."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from agent.common.table import DERIVED
from agent.errors import USAGE, AgentError
from agent.tables import TABLES


def columns(table: str) -> list[str]:
    """A view's columns in order: the common ones, then the table's own."""
    return ["t_ns", *(c.name for c in DERIVED), *(c.name for c in TABLES[table].columns[1:])]


def known(name: str, among: Iterable[str], what: str) -> str:
    """The name itself. Raises AgentError (exit 2) with the nearest names where it is not among them."""
    names = list(among)
    if name in names:
        return name
    raise unknown(name, names, what)


def unknown(name: str, names: list[str], what: str) -> AgentError:
    """The usage error for a name that is not among ``names``."""
    near = difflib.get_close_matches(name, names, 3, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"one of: {' '.join(names)}"
    return AgentError(f"no {what} {name!r}", remedy=hint, exit_code=USAGE)


def quote(name: str) -> str:
    """A column's name as SQL."""
    return '"' + name.replace('"', '""') + '"'


def mentioned(sql: str) -> list[str]:
    """The tables whose names occur in SQL text."""
    words = set(re.findall(r"\w+", sql.lower()))
    return [t for t in TABLES if t in words]
