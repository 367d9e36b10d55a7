"""Queries of a store: every table is a view of its sealed and hot rows with the derived columns. CLI process only."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from agent.ask.names import mentioned
from agent.ask.question import Question, Spread
from agent.ask.window import Bound, Window, parse
from agent.columns import NULL_I64
from agent.common.duration import brief
from agent.common.host import boot_id as this_boot
from agent.errors import UNREACHABLE, AgentError
from agent.store import cells, damage, duck, group, removed, segments
from agent.store.answers import Answers, executed
from agent.store.damage import unreadable
from agent.store.reader import WRITES_NS, Reader, Sealed, Snapshot, boots
from agent.tables import TABLES

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

T = TypeVar("T")
_TRIES = 10
_HISTORY = ("t_ns", "real_mono_ns", "boot_mono_ns", "err_ns", "cut")

#: Tables that a query for findings also reads, for what may have hidden findings.
_HIDES = {"loss", "probe_status"}


class Session(Answers):
    """A store at one moment, a source of rows (agent/ask/row_source.py). A context manager.

    tables: those that get a view. since, until: bounds (see window.py) by which sealed files are left out; the caller
    must still add ``window.rows()`` to its conditions, unless ``bounded``, when the views have no other rows. whole:
    leave no file out, for rows that concern times outside their own. Raises AgentError: exit 4 without a store, 2 for a
    bad time.
    """

    written_by = "the agent"

    def __init__(
        self,
        path: str | Path,
        tables: Iterable[str],
        since: str | Bound | None = None,
        until: str | Bound | None = None,
        *,
        whole: bool = False,
        bounded: bool = False,
    ) -> None:
        super().__init__()
        self.path, self._whole, self._bounded = Path(path).absolute(), whole, bounded
        self._tables = list(dict.fromkeys(tables))
        relative = any(isinstance(t, str) and t.strip().startswith("boot+") for t in (since, until))
        self._bounds = (since, until)
        self.window = self._present(boots(self.path) if relative else [])
        self._reader = self._new_reader()
        self._taken = self._snapshot()
        self._damaged: dict[str, str] = {}
        self._open()

    def _present(self, known: list[str]) -> Window:
        """The window as of now. known: the boots of the store."""
        return Window(*(parse(t, known) if isinstance(t, str) else t for t in self._bounds))

    def _new_reader(self) -> Reader:
        return Reader(self.path, frozenset([*self._tables, "clock_offset"]))

    def refresh(self) -> set[str]:
        sealed = self._taken.sealed
        self.window = self._present(self.boots)
        self._taken = self._snapshot()
        self._viewed.clear()
        resealed = self._taken.sealed != sealed
        if resealed:  # the last rows of a segment may have been sealed before they could be read
            self._histories.clear()
        for boot_id, rows in self._reader.offsets:
            if boot_id in self._histories:
                self._histories[boot_id].append(rows)
        for boot_id, history in self._histories.items():
            history.watched(self._watched_ns(boot_id))
        return set(self._tables) if resealed else self._reader.added & set(self._tables)

    def _open(self) -> None:
        """Opens a database without views: opening the files of unused tables would take as long as many a query."""
        self._db = duck.connected(self._wall)
        self._viewed: set[str] = set()
        self._views: dict[str, tuple[list[pa.Table], str]] = {}
        duck.confine(self._db, [f"{self.path}/"])

    def _close(self) -> None:
        duck.closed(self._db)

    def _set_aside(self) -> bool:
        """Checks the used files for damage; True if there are more damaged ones than were known."""
        found = unreadable(file for table in self._tables for file in self._files(table))
        self._damaged.update(found)
        return bool(found)

    @property
    def boots(self) -> list[str]:
        """Boot ids, oldest first."""
        return self._taken.boots

    def bound(self, text: str) -> Bound:
        return parse(text, self.boots)

    @property
    def notes(self) -> list[str]:
        """Notes: what could not be read or was removed, and that no agent writes."""
        lost = [damage.note(one, table, self._damaged[file]) for file, one, table in self._lost()]
        return [*dict.fromkeys([*self._outage(), *self._silence(), *self._removed(), *self._taken.notes, *lost])]

    @property
    def written_since_ns(self) -> int | None:
        """CLOCK_BOOTTIME at which the writing process started (to 10 ms), None if there is none."""
        return None if self._taken.writer is None else segments.started_ns(self._taken.writer)

    def last_ns(self, boot_id: str) -> int | None:
        return self._taken.ends.get(boot_id)

    def _silence(self) -> list[str]:
        """A note that no agent has added rows since some time: an empty result then means little."""
        taken = self._taken
        if taken.writer is not None or not taken.boots:
            return []
        if taken.boots[-1] != this_boot():
            return ["no agent has written this store since this host was booted"]
        if taken.end_ns == NULL_I64:
            return ["no agent writes this store now, and it has no rows"]
        age = brief(max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - taken.end_ns) / 1e9)
        return [f"no agent writes this store now; its newest row is {age} old"]

    def _outage(self) -> list[str]:
        """A note that the agent cannot write: rows are delayed or lost."""
        found = self._taken.outage
        if found is None or found.pid != self._taken.writer:
            return []
        lost = sum(count for count, _, _ in found.dropped.values())
        since = f"boot+{found.since_ns / 1e9:.0f} ({found.why})"
        count = f"{found.waiting} rows wait in its memory, {lost} are lost so far"
        return [f"the agent cannot write the store since {since}: {count}"]

    def _removed(self) -> list[str]:
        """A note that retention removed rows of the window. Findings have limits of their own."""
        names = set(self._tables)
        kept = not names.isdisjoint(segments.KEPT_LONG) and names <= {*segments.KEPT_LONG, *_HIDES}
        text = None if kept else removed.note(self._taken.oldest, self.window.since, self.wall)
        return [] if text is None else [text]

    def _run_query(self, sql: str, fetch: Callable[[Any], T]) -> T:
        """Raises AgentError: exit 2 for SQL that does not parse, bind or convert, or would write; 4 if files keep
        vanishing.
        """
        import duckdb

        problem = ""
        for _ in range(_TRIES):
            try:
                self._make_views(sql)
                return fetch(executed(self._db, sql))
            except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException) as error:
                raise duck.usage(str(error), sql, self._tables) from None
            except duckdb.Error as error:  # a damaged file, one that retention removed, or a wrong query
                problem = str(error)
                if not self._set_aside() and not isinstance(error, duckdb.IOException):
                    raise duck.usage(problem, sql, self._tables) from None
                self._close()
                self._reader = self._new_reader()
                self._taken = self._snapshot()
                self._open()
        raise AgentError(f"cannot read the store at {self.path}", why=problem.partition("\n")[0], exit_code=UNREACHABLE)

    def spread(self, question: Question, *, exact: bool = False) -> Spread:
        """Uses cells if there are many rows and the question allows it, else the rows."""
        return (None if exact else self._counted(question)) or super().spread(question, exact=exact)

    def _counted(self, question: Question) -> Spread | None:
        """None if the rows should be read instead."""
        whole = [
            s
            for s in self._taken.sealed
            if (span := s.tables.get(question.table))
            and self._file(s, question.table) not in self._damaged
            and s.cells.get(question.table, frozenset()).issuperset(question.group or ("",))
            and self.window.covers(s.head.boot_id, span["min_t_ns"], span["max_t_ns"])
        ]
        if question.where or sum(s.tables[question.table]["rows"] for s in whole) < cells.MANY:
            return None
        if not all(self._sound(s, question.table) for s in whole):
            return None
        counted = {self._file(s, question.table) for s in whole}
        rest = [file for file in self._files(question.table) if file not in counted]
        files = [f"{self.path}/{s.name}/{cells.name(question.table)}" for s in whole]
        hot = self._taken.hot.get(question.table, [])
        if rest or hot:
            duck.hold(self._db, question.table, hot)
        return group.counted(
            self._db, question, files, duck.rows_of(question.table, rest) if rest or hot else "", self.window
        )

    def _sound(self, one: Sealed, table: str) -> bool:
        """Whether the cells file is intact; False also if it is gone."""
        try:
            return cells.checksum(f"{self.path}/{one.name}/{cells.name(table)}") == one.sums.get(table)
        except OSError:
            return False

    def _snapshot(self) -> Snapshot:
        return self._reader.snapshot(None if self._whole else self.window)

    def _make_views(self, sql: str) -> None:
        """Creates views of the tables that the query names, or of all if it names none. Raises duckdb.Error for a
        damaged or missing file.
        """
        named = set(mentioned(sql)) & set(self._tables) or self._tables
        for table in (t for t in self._tables if t in named and t not in self._viewed):
            lost = [damage.loss(one, of) for _, one, of in self._lost()] if table == "loss" else []
            parts = [*self._taken.hot.get(table, []), *lost]
            sql = duck.view(table, self._files(table), self.window, bounded=self._bounded)
            before, made = self._views.get(table, ((), ""))
            if len(parts) != len(before) or any(a is not b for a, b in zip(parts, before, strict=True)) or not made:
                duck.hold(self._db, table, parts)
            if sql != made:
                self._db.execute(sql)
            self._views[table] = (parts, sql)
            self._viewed.add(table)

    def _files(self, table: str) -> list[str]:
        window = Window() if self._whole or table == "loss" or TABLES[table].as_of else self.window
        files = [
            self._file(s, table)
            for s in self._taken.sealed
            if (span := s.tables.get(table)) and not window.misses(s.head.boot_id, span["min_t_ns"], span["max_t_ns"])
        ]
        return [file for file in files if file not in self._damaged]

    def _file(self, one: Sealed, table: str) -> str:
        return f"{self.path}/{one.name}/{table}.parquet"

    def _lost(self) -> Iterator[tuple[str, Sealed, str]]:
        """(file, segment, table) of each damaged file that still exists."""
        for one in self._taken.sealed:
            for table in one.tables:
                file = self._file(one, table)
                if file in self._damaged:
                    yield file, one, table

    def _offsets(self, boot_id: str) -> tuple[np.ndarray, int]:
        return offsets(self._db.cursor(), self._taken, self.path, boot_id), self._watched_ns(boot_id)

    def _watched_ns(self, boot_id: str) -> int:
        """Until when an agent watched the clock in that boot: its last write, or now."""
        end_ns, now_ns = self._taken.ends.get(boot_id, NULL_I64), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        writes = self._taken.writer is not None and boot_id == this_boot() and 0 <= now_ns - end_ns < WRITES_NS
        return now_ns if writes else end_ns


def offsets(db: duckdb.DuckDBPyConnection, taken: Snapshot, path: Path, boot_id: str) -> np.ndarray:
    """The clock_offset rows of one boot, hot and sealed, with the columns that a History needs.

    Segments that retention removed since the snapshot are left out. Damaged ones give a note.
    """
    import duckdb

    columns = [TABLES["clock_offset"].by_name[name] for name in _HISTORY]
    known = ", ".join(f"coalesce({c.name}{'::TINYINT' * (c.kind == 'bool')}, {c.null}) AS {c.name}" for c in columns)
    found = [np.empty(0, [(c.name, c.dtype) for c in columns])]

    def add(rows: str) -> None:  # without nulls, so that numpy does not load masked arrays
        stored = db.execute(f"SELECT {known} FROM {rows} WHERE boot_id = ?", [boot_id]).fetchnumpy()
        part = np.empty(len(stored["t_ns"]), found[0].dtype)
        for name in _HISTORY:
            part[name] = stored[name]
        found.append(part)

    duck.hold(db, "clock_offset", taken.hot.get("clock_offset", ()))
    add(duck.held("clock_offset"))
    for one in taken.sealed:
        if one.head.boot_id != boot_id or "clock_offset" not in one.tables:
            continue
        try:
            add(f"read_parquet({duck.text(f'{path}/{one.name}/clock_offset.parquet')})")
        except duckdb.Error:
            if os.path.isdir(path / one.name):
                taken.notes.append(
                    f"{one.name}/clock_offset.parquet is damaged: wall times near its rows are less certain"
                )
    return np.concatenate(found)
