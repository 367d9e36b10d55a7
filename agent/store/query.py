"""SQL over a store: every table is a view of its sealed and hot rows with the derived columns. CLI process only.

DuckDB runs in memory, may open files of this store only, and reads; wall time is computed by a vectorised function that
is called just for the rows and columns a query needs.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from agent.clock.history import Converted, History
from agent.columns import NULL_I64
from agent.errors import UNREACHABLE, USAGE, AgentError
from agent.store import damage, removed, segments
from agent.store.damage import unreadable
from agent.store.names import columns, quote, unknown
from agent.store.reader import Sealed, Snapshot, merged, snapshot
from agent.store.window import WALL, Window, parse, this_boot
from agent.tables import TABLES

_TRIES = 10
_HISTORY = ("t_ns", "real_mono_ns", "boot_mono_ns", "err_ns", "cut")
_WALL_TYPE = "STRUCT(wall_ns BIGINT, wall_err_ns BIGINT, wall_state VARCHAR, wall_alt_ns BIGINT)"


class Result(NamedTuple):
    """Rows of a query as tuples, in the order of ``columns``."""

    columns: list[str]
    rows: list[tuple[Any, ...]]

    def dicts(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class Session:
    """A store at one moment, open for SQL. A context manager.

    tables: those that get a view. since, until: bounds (see window.py) that let whole sealed files be left out; the caller
    still puts ``window.rows()`` into its conditions. whole: leave none out, for rows that tell of what holds beyond them.
    Raises AgentError: exit 4 without a store, 2 for a bad time.
    """

    def __init__(self, path: str | Path, tables: Iterable[str], since: str | None = None, until: str | None = None, *, whole: bool = False) -> None:
        self.path, self._whole = Path(path).absolute(), whole
        self._tables = list(dict.fromkeys(tables))
        self._taken = self._snapshot()
        self.window = Window(*(parse(t, self._taken.boots) if t else None for t in (since, until)))
        self._histories: dict[str, History] = {}
        self._damaged: dict[str, str] = {}
        self._lock = threading.Lock()
        self._open()

    def _open(self) -> None:
        """A database with the views, over the files that can be read. Raises AgentError (exit 4) where that keeps failing."""
        import duckdb

        problem = ""
        for _ in range(_TRIES):
            self._db = duckdb.connect()
            register: Any = self._db.create_function  # Its stub lacks the names that stand for types.
            register(WALL, self._wall, ["VARCHAR", "BIGINT"], _WALL_TYPE, type="arrow", null_handling="special")
            try:
                self._make_views()
            except duckdb.Error as error:  # A damaged file, or one that retention removed: look again.
                problem = str(error)
                self._close()
                self._set_aside()
                self._taken = self._snapshot()
                continue
            self._db.execute(f"SET allowed_directories = [{_text(f'{self.path}/')}]")
            self._db.execute("SET enable_external_access = false")
            self._db.execute("SET lock_configuration = true")
            return
        raise AgentError(f"cannot read the store at {self.path}", why=problem.partition("\n")[0], exit_code=UNREACHABLE)

    def _close(self) -> None:
        self._db.remove_function(WALL)
        self._db.close()

    def _set_aside(self) -> bool:
        """Looks for damaged files among those that are used; True when there are more than were known."""
        found = unreadable(file for table in self._tables for file in self._files(table))
        self._damaged.update(found)
        return bool(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @property
    def boots(self) -> list[str]:
        """Boot ids, oldest first."""
        return self._taken.boots

    @property
    def notes(self) -> list[str]:
        """What could not be read or was removed, and that nobody writes, in words."""
        lost = [damage.note(one, table, self._damaged[file]) for file, one, table in self._lost()]
        return [*dict.fromkeys([*self._silence(), *self._removed(), *self._taken.notes, *lost])]

    @property
    def written_since_ns(self) -> int | None:
        """CLOCK_BOOTTIME at which the process that adds to the store was started (to 10 ms), None where there is none."""
        return None if self._taken.writer is None else segments.started_ns(self._taken.writer)

    def _silence(self) -> list[str]:
        """That no agent adds rows now, and since when: nothing found is then no good news."""
        taken = self._taken
        if taken.writer is not None or not taken.boots:
            return []
        if taken.boots[-1] != this_boot():
            return ["no agent has written this store since this host was booted"]
        age = timedelta(seconds=max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - taken.end_ns) // 10**9)
        return [f"no agent writes this store now; its newest row is {age} old (hours, minutes, seconds)"]

    def _removed(self) -> list[str]:
        """That retention removed rows which the window asks for; findings have limits of their own."""
        text = None if self._tables == ["finding"] else removed.note(self._taken.oldest, self.window.since, self.wall)
        return [] if text is None else [text]

    def run(self, sql: str) -> Result:
        """Raises AgentError: exit 2 for SQL that does not parse, bind or convert; 4 where files keep vanishing."""
        import duckdb

        problem = ""
        for _ in range(_TRIES):
            try:
                done = self._db.execute(sql)
                if done is None:  # Nothing but blanks, semicolons and comments.
                    raise self._usage("there is no statement in it")
                names = [d[0] for d in done.description or ()]
                return Result(names, done.fetchall())
            except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException) as error:
                raise self._usage(str(error)) from None
            except duckdb.Error as error:  # A damaged file, one that retention removed, or a wrong question.
                problem = str(error)
                if not self._set_aside() and not isinstance(error, duckdb.IOException):
                    raise self._usage(problem) from None
                self._close()
                self._taken = self._snapshot()
                self._open()
        raise AgentError(f"cannot read the store at {self.path}", why=problem.partition("\n")[0], exit_code=UNREACHABLE)

    def order(self) -> str:
        """ORDER BY expressions for the order of time, over several boots."""
        if len(self.boots) < 2:
            return "t_ns"
        return f"list_position([{', '.join(map(_text, self.boots))}], boot_id), t_ns"

    def wall(self, boot_id: str, t_ns: np.ndarray) -> np.ndarray:
        """Wall times (Unix ns) of CLOCK_BOOTTIME ns of that boot, shape (n,); NULL_I64 where not known."""
        return to_wall(self._history(boot_id), t_ns).ns

    def gaps(self) -> list[dict[str, Any]]:
        """Loss rows whose interval overlaps the window."""
        first, last = "coalesce(from_ns, to_ns, t_ns)", "coalesce(to_ns, t_ns)"
        where = " AND ".join(["(count IS NULL OR count > 0)", *self.window.overlaps(first, last)])
        return self.run(f"SELECT * FROM loss WHERE {where} ORDER BY {self.order()}").dicts()

    def _snapshot(self) -> Snapshot:
        return snapshot(self.path, frozenset([*self._tables, "clock_offset"]))

    def _make_views(self) -> None:
        import pyarrow as pa

        from agent.store.arrow import WALL_COLUMNS, schema, to_arrow

        for table in self._tables:
            lost = [damage.loss(one, of) for _, one, of in self._lost()] if table == "loss" else []
            parts = merged([*self._taken.hot.get(table, []), *lost])
            hot = pa.concat_tables([schema(table).empty_table(), *(to_arrow(table, p.rows, p.boot_id, p.host) for p in parts)])
            self._db.register(f"_hot_{table}", hot)
            source = f"SELECT * FROM _hot_{table}"
            if files := self._files(table):
                source += f" UNION ALL BY NAME SELECT * FROM read_parquet([{', '.join(map(_text, files))}], union_by_name = true)"
            names = ", ".join(f"w.{c} AS {c}" if c in WALL_COLUMNS else quote(c) for c in columns(table))
            self._db.execute(f"CREATE OR REPLACE VIEW {table} AS SELECT {names} FROM "
                             f"(SELECT *, {WALL}(boot_id, t_ns) AS w FROM ({source})){self._latest(table)}")

    def _latest(self, table: str) -> str:
        """What leaves a thing's latest state in the window, in a table whose rows are states."""
        if not (by := TABLES[table].latest_by):
            return ""
        within = " AND ".join(self.window.rows()) or "true"
        return f" WHERE {within} QUALIFY row_number() OVER (PARTITION BY boot_id, {by} ORDER BY t_ns DESC) = 1"

    def _files(self, table: str) -> list[str]:
        window = Window() if self._whole or table == "loss" else self.window
        files = [f"{self.path}/{s.name}/{table}.parquet" for s in self._taken.sealed if (span := s.tables.get(table))
                 and not window.misses(s.head.boot_id, span["min_t_ns"], span["max_t_ns"])]
        return [file for file in files if file not in self._damaged]

    def _lost(self) -> Iterator[tuple[str, Sealed, str]]:
        """(file, segment, table) of each damaged file that is still there."""
        for one in self._taken.sealed:
            for table in one.tables:
                file = f"{self.path}/{one.name}/{table}.parquet"
                if file in self._damaged:
                    yield file, one, table

    def _wall(self, boots: Any, times: Any) -> Any:
        """Arrow arrays (boot_id, t_ns) of one chunk to a struct array of the wall columns."""
        import pyarrow as pa

        from agent.store.arrow import WALL_COLUMNS, wall_arrays

        boot = np.asarray(boots.to_numpy(zero_copy_only=False), object)
        t_ns = np.asarray(times.fill_null(NULL_I64).to_numpy(zero_copy_only=False), np.int64)
        wall, err, alt = (np.full(len(t_ns), NULL_I64) for _ in range(3))
        state = np.full(len(t_ns), -1, np.int8)
        for name in set(boot):
            at = np.flatnonzero((boot == name) & (t_ns != NULL_I64))
            if name is not None and len(at):
                wall[at], err[at], state[at], alt[at] = to_wall(self._history(name), t_ns[at])
        return pa.StructArray.from_arrays(wall_arrays(Converted(wall, err, state, alt)), list(WALL_COLUMNS))

    def _history(self, boot_id: str) -> History:
        with self._lock:
            if boot_id not in self._histories:
                self._histories[boot_id] = History.from_rows(offsets(self._taken, self.path, boot_id))
            return self._histories[boot_id]

    def _usage(self, message: str) -> AgentError:
        """A message of DuckDB as a usage error, with the nearest names where it misses a column or table."""
        first = message.partition("\n")[0]
        if match := re.search(r'(?:column|Column with name) "?([\w.]+)"? (?:not found|does not exist)', first):
            names = sorted({c for t in self._tables for c in columns(t)})
            return unknown(match[1], names, "column")
        if match := re.search(r"Table with name (\w+) does not exist", first):
            return unknown(match[1], list(TABLES), "table")
        return AgentError(f"bad SQL: {first}", remedy="tickscope tables TABLE lists columns; text goes in 'single quotes'", exit_code=USAGE)


def mentioned(sql: str) -> list[str]:
    """The tables whose names occur in SQL text."""
    words = set(re.findall(r"\w+", sql.lower()))
    return [t for t in TABLES if t in words]


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def to_wall(history: History, t_ns: np.ndarray) -> Converted:
    """Wall times, shape (n,); all unknown where the history is empty."""
    if len(history):
        return history.to_wall(t_ns)
    null = np.full(len(t_ns), NULL_I64)
    return Converted(null, null, np.full(len(t_ns), -1, np.int8), null)


def offsets(taken: Snapshot, path: Path, boot_id: str) -> np.ndarray:
    """The clock_offset rows of one boot, hot and sealed, with the columns that a History needs.

    Segments that retention removed since the snapshot are left out, as their rows are gone as well; of damaged ones a note is taken.
    """
    import duckdb

    table = TABLES["clock_offset"]
    found = [table.empty(0), *(p.rows for p in taken.hot.get("clock_offset", []) if p.boot_id == boot_id)]
    with duckdb.connect() as db:
        for one in taken.sealed:
            if one.head.boot_id != boot_id or "clock_offset" not in one.tables:
                continue
            file = f"{path}/{one.name}/clock_offset.parquet"
            try:
                stored = db.execute(f"SELECT {', '.join(_HISTORY)} FROM read_parquet(?)", [file]).fetchnumpy()
            except duckdb.Error:
                if os.path.isdir(path / one.name):
                    taken.notes.append(f"{one.name}/clock_offset.parquet is damaged: wall times near its rows are less certain")
                continue
            rows = table.empty(len(stored["t_ns"]))
            for name in _HISTORY:
                values = np.ma.asarray(stored[name])
                rows[name] = values.data
                rows[name][np.ma.getmaskarray(values)] = table.by_name[name].null
            found.append(rows)
    return np.concatenate(found)
