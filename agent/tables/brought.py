"""Tables that a probe's own file declares. They are read from its text: to run it would bring numpy and the kernel's
plumbing into each verb.

Such a file says ``ANYTHING = table("name", "meaning", columns ..., measure="column")`` at its top level, of what
agent/columns.py and agent/tables/shared.py offer, and of nothing else.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from agent import columns
from agent.common.table import Tables
from agent.errors import AgentError
from agent.tables import shared

_SOME = re.compile(rb"^\w+ = table\(", re.MULTILINE)
_REMEDY = "a table is made of what agent/columns.py and agent/tables/shared.py offer, and of nothing else"
_OFFERED = {name: one for room in (columns, shared) for name, one in vars(room).items() if not name.startswith("_")}


def bring(folder: Path, tables: Tables) -> None:
    """Adds those of a folder's files, in the order of their names. Raises AgentError, which says where, for one that
    cannot be.
    """
    for path in sorted(folder.glob("[a-z]*.py")):
        text = path.read_bytes()
        if not _SOME.search(text):  # most: they are not parsed
            continue
        try:
            for call in _declared(text):
                tables.add(eval(compile(ast.Expression(call), str(path), "eval"), {**_OFFERED, "__builtins__": {}}))  # noqa: S307 - our own file, which the agent runs as a whole
        except NameError as error:
            raise AgentError(f"{path}: {error}", remedy=_REMEDY) from error
        except (TypeError, ValueError, AttributeError, SyntaxError) as error:
            raise AgentError(
                f"{path}: {error}", remedy="mend the table that it declares, or take the file away"
            ) from error


def _declared(text: bytes) -> Iterator[ast.Call]:
    for statement in ast.parse(text).body:
        match statement:
            case ast.Assign(value=ast.Call(func=ast.Name(id="table")) as call):
                yield call
