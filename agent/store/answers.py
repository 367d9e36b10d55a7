"""Queries through DuckDB: the common part of a store and a recording. CLI process only.

A vectorised function computes wall times, only for the rows and columns that a query needs.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from agent.ask import sql as questions
from agent.ask.question import TIME, Condition, Question, Spread, Where
from agent.ask.row_source import Result, gap_bounds
from agent.ask.window import Window
from agent.clock.history import Converted, History
from agent.columns import HIST_BUCKETS, NULL_I64, Column
from agent.common.address import addr_bytes, peer_of
from agent.errors import UNREACHABLE, AgentError
from agent.store import duck, group
from agent.tables import TABLES

T = TypeVar("T")
#: Rows of a span of ``batches``, which DuckDB sorts at once; rows that are Python objects at one time.
_SPAN_ROWS = 2_000
#: The same for ``tables``, which holds numpy arrays.
_TABLE_ROWS = 5_000
#: What rows are counted by to find such spans: a count a second of each day would take more memory than the rows.
_STEPS_S = (3_600, 60, 1)
_BATCH_ROWS = 200


class _Span(NamedTuple):
    """A half-open range of seconds of CLOCK_BOOTTIME of one boot, and the number of result rows in it."""

    boot_id: str
    from_s: int
    until_s: int
    rows: int

    def where(self) -> tuple[Where, ...]:
        return (
            Where("boot_id", "=", self.boot_id),
            Where("t_ns", ">=", self.from_s * 10**9),
            Where("t_ns", "<", self.until_s * 10**9),
        )


class Answers(ABC):
    """A source of rows (agent/ask/row_source.py) whose tables are views of a database in memory. Subclasses open the
    database and run queries.
    """

    def __init__(self) -> None:
        self.window = Window()
        self._histories: dict[str, History] = {}
        self._lock = threading.Lock()

    @property
    @abstractmethod
    def boots(self) -> list[str]:
        """Boot ids, oldest first."""

    @abstractmethod
    def _offsets(self, boot_id: str) -> tuple[np.ndarray, int]:
        """(a boot's clock_offset rows, with the columns that a History needs; until when its clock was watched,
        CLOCK_BOOTTIME ns).
        """

    @abstractmethod
    def _run_query(self, sql: str, fetch: Callable[[Any], T]) -> T:
        """The result of ``fetch`` on an executed query. Raises AgentError: exit 2 for SQL that does not parse, bind or
        convert, or would write; 4 if files keep vanishing.
        """

    @abstractmethod
    def _close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def rows(self, question: Question) -> list[dict[str, Any]]:
        """One dictionary per row or group."""
        return self.run(questions.select(question, self.boots, self.window)).dicts()

    def batches(self, question: Question) -> Iterator[list[dict[str, Any]]]:
        """The same rows in order of time, or the newest ``question.limit`` of them, a few hundred at once. It reads one
        time span after the other, so memory does not grow with the number of rows.
        """
        for span, count in self._spans(question):
            part = replace(question, where=(*question.where, *span.where()), order=TIME, limit=None)
            if count < span.rows:
                yield self.rows(part.newest(count))[::-1]
            else:
                columns, batches = self.stream(questions.select(part, self.boots, self.window))
                yield from ([dict(zip(columns, row, strict=True)) for row in batch] for batch in batches)

    def _spans(self, question: Question, most: int = _SPAN_ROWS) -> list[tuple[_Span, int]]:
        """Time spans in order, each with at most ``most`` of the question's rows (more only within one second), and
        how many of each span's newest rows belong to the result.
        """
        first, *finer = _STEPS_S
        spans = self._spans_of(question, first, most)
        left = sum(span.rows for span in spans) if question.limit is None else question.limit
        kept: list[tuple[_Span, int]] = []
        while spans and left > 0:
            span = spans.pop()
            step_s = next((step for step in finer if step < span.until_s - span.from_s), 0)
            if span.rows > most and step_s:
                spans += self._spans_of(replace(question, where=(*question.where, *span.where())), step_s, most)
                continue
            kept.append((span, min(span.rows, left)))
            left -= span.rows
        return kept[::-1]

    def _spans_of(self, question: Question, step_s: int, most: int) -> list[_Span]:
        """Time spans of whole steps in order, as long as ``most`` rows allow."""
        boots = ", ".join(map(questions.literal, self.boots))
        _, batches = self.stream(
            f"SELECT * FROM (SELECT boot_id, t_ns // {step_s}000000000 AS step, count(*) FROM {question.table}"
            f" WHERE {questions.conditions(question, self.window)} GROUP BY ALL)"
            f" ORDER BY list_position([{boots}]::VARCHAR[], boot_id), boot_id, step"
        )
        spans: list[_Span] = []
        for boot, step, rows in itertools.chain.from_iterable(batches):
            last = spans[-1] if spans else None
            until_s = (step + 1) * step_s
            if last is None or last.boot_id != boot or last.rows + rows > most:
                spans.append(_Span(boot, step * step_s, until_s, rows))
            else:
                spans[-1] = last._replace(until_s=until_s, rows=last.rows + rows)
        return spans

    def integers(self, question: Question) -> dict[str, np.ndarray]:
        """Columns of integers, int64, shape (n,), NULL_I64 for unknown."""
        found = self._run_query(questions.select(question, self.boots, self.window), lambda done: done.fetchnumpy())
        return {name: np.ma.filled(np.ma.asarray(column).astype(np.int64), NULL_I64) for name, column in found.items()}

    def table(self, question: Question) -> np.ndarray:
        """Rows in the table's own dtype (agent/columns.py), with the question's columns only."""
        columns = [TABLES[question.table].by_name[name] for name in question.columns]
        found = self._run_query(questions.select(question, self.boots, self.window), lambda done: done.fetchnumpy())
        rows = np.empty(len(found[columns[0].name]), [(one.name, one.dtype) for one in columns])
        for one in columns:
            rows[one.name] = as_stored(one, found[one.name])
        return rows

    def tables(self, question: Question) -> Iterator[np.ndarray]:
        """The same in order of time, a few thousand rows at once, so memory does not grow with the number of rows."""
        for span, _ in self._spans(question, _TABLE_ROWS):
            yield self.table(replace(question, where=(*question.where, *span.where()), order=TIME))

    def spread(self, question: Question, *, exact: bool = False) -> Spread:
        """The distribution of the table's measure in each group (agent/store/group.py)."""
        return group.spread(self.run, question, self.window)

    def run(self, sql: str) -> Result:
        """Runs a query. Raises as ``_run_query``."""
        return self._run_query(sql, lambda done: Result([d[0] for d in done.description or ()], done.fetchall()))

    def stream(self, sql: str) -> tuple[list[str], Iterator[list[tuple[Any, ...]]]]:
        """The columns of a query and its rows, a few hundred at once. No other query may run until they are read.
        Raises as ``_run_query``; the iterator raises AgentError (exit 4) if a file fails after the first rows.
        """
        done, columns, first = self._run_query(
            sql, lambda done: (done, [d[0] for d in done.description or ()], done.fetchmany(_BATCH_ROWS))
        )
        return columns, _rest(done, first)

    def gaps(self) -> list[dict[str, Any]]:
        """Loss rows whose interval overlaps the window, with the wall times of both ends."""
        inside = " AND ".join(
            [
                "(count IS NULL OR count > 0)",
                *self.window.overlaps("coalesce(from_ns, to_ns, t_ns)", "coalesce(to_ns, t_ns)"),
            ]
        )
        found = self.rows(Question("loss", where=(Condition(inside),), within=False))
        for gap in found:
            begin, end = gap_bounds(gap)
            walls = self.wall(gap["boot_id"], np.array([begin, end], np.int64)).tolist()
            gap["from_wall_ns"], gap["to_wall_ns"] = (None if wall == NULL_I64 else wall for wall in walls)
        return found

    def history(self, boot_id: str) -> History:
        """The offset history of a boot; empty if there is none."""
        with self._lock:
            if boot_id not in self._histories:
                rows, watched_ns = self._offsets(boot_id)
                one = self._histories[boot_id] = History.from_rows(rows)
                one.watched(watched_ns)
            return self._histories[boot_id]

    def wall(self, boot_id: str, t_ns: np.ndarray) -> np.ndarray:
        """Wall times (Unix ns) of CLOCK_BOOTTIME ns of that boot, shape (n,); NULL_I64 if unknown."""
        return to_wall(self.history(boot_id), t_ns).ns

    def _wall(self, boots: Any, times: Any) -> Any:
        """Arrow arrays (boot_id, t_ns) of one chunk to a struct array of the wall columns."""
        import pyarrow as pa

        from agent.store.arrow import WALL_COLUMNS, wall_arrays

        boot = np.asarray(boots.to_numpy(zero_copy_only=False), object)
        known = times.fill_null(NULL_I64) if times.null_count else times  # filling loads pyarrow.compute
        t_ns = np.asarray(known.to_numpy(zero_copy_only=False), np.int64)
        wall, err, alt = (np.full(len(t_ns), NULL_I64) for _ in range(3))
        state = np.full(len(t_ns), -1, np.int8)
        for name in set(boot):
            at = np.flatnonzero((boot == name) & (t_ns != NULL_I64))
            if name is not None and len(at):
                wall[at], err[at], state[at], alt[at] = to_wall(self.history(name), t_ns[at])
        return pa.StructArray.from_arrays(wall_arrays(Converted(wall, err, state, alt)), list(WALL_COLUMNS))


def _rest(done: Any, batch: list[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """All batches of a result. Raises AgentError (exit 4) if a file fails after the first: its rows are printed
    already, so the file can no longer be left out.
    """
    import duckdb

    rows = 0
    while batch:
        yield batch
        rows += len(batch)
        try:
            batch = done.fetchmany(_BATCH_ROWS)
        except duckdb.Error as error:
            raise AgentError(
                f"the answer is incomplete: a file of the store failed behind {rows} rows",
                why=str(error).partition("\n")[0],
                remedy="order the rows (tickscope sql '... ORDER BY t_ns'): a damaged file is then left out",
                exit_code=UNREACHABLE,
            ) from error


#: The stored bytes of an address and a peer, which a view shows as text.
_ENCODED: dict[str, Callable[[str], bytes]] = {
    "addr": lambda text: peer_of(text)[:16] if text.startswith("unix:") else addr_bytes(text),
    "peer": peer_of,
}


def as_stored(column: Column, given: np.ndarray) -> np.ndarray:
    """DuckDB's values of a column, converted to the column's stored form: numbers, booleans, texts, names, addresses
    and histograms.
    """
    values = np.ma.asarray(given)
    missing = np.ma.getmaskarray(values)
    if column.kind == "hist":
        none = np.zeros(HIST_BUCKETS, np.uint32)
        return np.array([none if one is None else one for one in given], np.uint32).reshape(-1, HIST_BUCKETS)
    if column.kind not in ("str", "enum", "json", "addr", "peer"):
        stored = np.asarray(np.ma.getdata(values)).astype(column.dtype)
        stored[missing] = column.null
        return stored
    codes = {name: code for code, name in enumerate(column.names)}
    texts = [
        None if gone else text for text, gone in zip(np.ma.getdata(values).tolist(), missing.tolist(), strict=True)
    ]
    if column.kind == "enum":
        return np.array([-1 if text is None else codes.get(text, -1) for text in texts], column.dtype)
    encode = _ENCODED.get(column.kind, str.encode)
    return np.array([b"" if text is None else encode(text) for text in texts], column.dtype)


def executed(db: Any, sql: str) -> Any:
    """The query's result, not fetched yet. Raises duckdb.Error, and AgentError (exit 2) if the query would write or is
    empty.
    """
    duck.refuse_writes(db, sql)
    done = db.execute(sql)
    if done is None:  # Nothing but blanks, semicolons and comments.
        raise duck.usage("there is no statement in it", sql, ())
    return done


def to_wall(history: History, t_ns: np.ndarray) -> Converted:
    """Wall times, shape (n,); all unknown if the history is empty."""
    if len(history):
        return history.to_wall(t_ns)
    null = np.full(len(t_ns), NULL_I64)
    return Converted(null, null, np.full(len(t_ns), -1, np.int8), null)
