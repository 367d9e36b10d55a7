"""Opens a source of rows: a directory is a store, a file is a recording."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from agent.ask.row_source import RowSource
from agent.ask.window import Bound


def opened(
    place: str | Path,
    tables: Iterable[str],
    since: str | Bound | None = None,
    until: str | Bound | None = None,
    *,
    whole: bool = False,
    bounded: bool = False,
) -> RowSource:
    """The source of rows at ``place``; the caller closes it (``with``).

    tables: all that will be queried. since, until: the window (agent/ask/window.py). whole: rows outside of the window
    are queried too, with ``within=False``. bounded: SQL sees no row outside. Raises AgentError: exit 4 if there is
    nothing to read, 2 for a bad time.
    """
    if os.path.isfile(place):
        from agent.store.recorded import Recorded

        return Recorded(place, tables, since, until, bounded=bounded)
    from agent.store.query import Session

    return Session(place, tables, since, until, whole=whole, bounded=bounded)
