"""Queries of a recording: its rows of the requested tables, in memory. CLI process only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from agent.ask.window import Bound, Window, parse
from agent.columns import NULL_I64
from agent.errors import UNREACHABLE, AgentError
from agent.store import duck
from agent.store.answers import Answers, executed
from agent.store.arrow import Gathered
from agent.store.frames import FrameKind
from agent.store.recording import Recording
from agent.tables import TABLES

T = TypeVar("T")


class Recorded(Answers):
    """A recording, a source of rows (agent/ask/row_source.py). Arguments as ``Session``'s; relative times count back
    from its end.

    Raises AgentError: exit 4 for a file that is no recording or is damaged, 2 for a bad time.
    """

    written_since_ns = None
    written_by = "the recording"

    def __init__(
        self,
        path: str | Path,
        tables: Iterable[str],
        since: str | Bound | None = None,
        until: str | Bound | None = None,
        *,
        bounded: bool = False,
    ) -> None:
        super().__init__()
        self._tables = dict.fromkeys(tables)
        rows, clock = Gathered(), [TABLES["clock_offset"].empty(0)]
        try:
            recording = Recording(path, frozenset([*self._tables, "clock_offset"]))
            self._boot, self._end_ns = recording.head.boot_id, recording.head.created_ns
            for frame in recording:
                if frame.kind == FrameKind.ROWS:
                    if frame.table == "clock_offset":
                        clock.append(frame.rows.copy())
                    if frame.table in self._tables:
                        rows.add(frame.table, frame.rows, self._boot, recording.head.host)
                    self._end_ns = max(self._end_ns, int(frame.rows["t_ns"].max()))
                elif frame.kind == FrameKind.TICK:
                    self._end_ns = max(self._end_ns, frame.t_ns)
        except AgentError as error:  # the file was given in place of a store
            error.exit_code = UNREACHABLE
            raise
        self.notes = [f"{path} is cut off: {recording.cut}"] if recording.cut else []
        self._clock = np.concatenate(clock)
        self.window = Window(*(self.bound(t) if isinstance(t, str) else t for t in (since, until)))
        self._db = duck.connected(self._wall)
        held = rows.tables()
        for table in self._tables:
            duck.hold(self._db, table, held.get(table, ()))
            self._db.execute(duck.view(table, (), self.window, bounded=bounded))
        duck.confine(self._db)

    @property
    def boots(self) -> list[str]:
        """The recorded boot."""
        return [self._boot]

    def refresh(self) -> set[str]:
        """Nothing is added to a recording."""
        return set()

    def last_ns(self, boot_id: str) -> int | None:
        return self._end_ns if boot_id == self._boot else None

    def bound(self, text: str) -> Bound:
        return parse(text, self.boots, (self._boot, self._end_ns))

    def _offsets(self, boot_id: str) -> tuple[np.ndarray, int]:
        return (self._clock, self._end_ns) if boot_id == self._boot else (self._clock[:0], NULL_I64)

    def _run_query(self, sql: str, fetch: Callable[[Any], T]) -> T:
        import duckdb

        try:
            return fetch(executed(self._db, sql))
        except duckdb.Error as error:
            raise duck.usage(str(error), sql, self._tables) from None

    def _close(self) -> None:
        duck.closed(self._db)
