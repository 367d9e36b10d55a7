"""DuckDB in memory, confined to reading given files: the views of tables, the check for read-only SQL, and its errors
as AgentError. CLI process only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from agent.ask.names import columns, mentioned, quote, unknown
from agent.ask.window import WALL, Window
from agent.common.lean import hollow, without
from agent.errors import USAGE, AgentError
from agent.tables import TABLES

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

#: Each thread decodes its own row group: more threads cost more memory than they save time.
THREADS = 1
#: Memory limit of a query, which protects the host.
MEMORY = "1GB"
_WALL_TYPE = "STRUCT(wall_ns BIGINT, wall_err_ns BIGINT, wall_state VARCHAR, wall_alt_ns BIGINT)"
#: Statements that only read. DuckDB splits PIVOT into several: the type of its columns, then the query.
_READING = ("SELECT", "MULTI")
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_EXPLAIN = re.compile(
    rf"^(?:\s|{_COMMENT.pattern})*explain\b(\s|{_COMMENT.pattern}|analyze\b|\(\s*(analyze|format)\b[^)]*\))*",
    re.IGNORECASE | re.DOTALL,
)


def _token_hex(n: int) -> str:
    return os.urandom(n).hex()


def plain() -> duckdb.DuckDBPyConnection:
    """A database in memory with a small footprint."""
    # Avoids loading OpenSSL, 3 MB, and what only DuckDB's version and HTML need, 3 MB.
    with (
        without("_hashlib"),
        hollow("importlib.metadata", version=str),
        hollow("html"),
        hollow("secrets", token_hex=_token_hex),
    ):
        import duckdb

    # A cache of file contents would pay only for repeated reads. Nothing is spilled to disk.
    return duckdb.connect(
        config={
            "threads": THREADS,
            "memory_limit": MEMORY,
            "temp_directory": "",
            "enable_external_file_cache": False,
        }
    )


def connected(wall: Callable[[Any, Any], Any]) -> duckdb.DuckDBPyConnection:
    """A database without tables. wall: Arrow arrays (boot_id, t_ns) of one chunk to a struct array of the
    wall columns.
    """
    db = plain()
    register: Any = db.create_function  # its stub lacks type names
    register(WALL, wall, ["VARCHAR", "BIGINT"], _WALL_TYPE, type="arrow", null_handling="special")
    return db


def confine(db: duckdb.DuckDBPyConnection, directories: Iterable[str] = ()) -> None:
    """From now on it opens only files below these directories."""
    db.execute(f"SET allowed_directories = [{', '.join(map(text, directories))}]")
    db.execute("SET enable_external_access = false")
    db.execute("SET enable_progress_bar = false")  # the bar is drawn on stdout, amid the rows, after two seconds
    db.execute("SET lock_configuration = true")


def closed(db: duckdb.DuckDBPyConnection) -> None:
    """Closes the database, also in the middle of a result."""
    if abort := getattr(db, "abort", None):  # from DuckDB 2 on; else the calls below fail during a query
        abort()
    db.remove_function(WALL)
    db.close()


def view(table: str, files: Sequence[str], window: Window, *, bounded: bool) -> str:
    """The statement for a view of a table over rows in memory (``hold``) and Parquet files. bounded: only the window's
    rows.
    """
    return f"CREATE OR REPLACE VIEW {table} AS {rows_of(table, files)}{_latest(table, window, bounded=bounded)}"


def hold(db: duckdb.DuckDBPyConnection, table: str, parts: Iterable[pa.Table]) -> None:
    """Loads rows into memory for ``rows_of``."""
    import pyarrow as pa

    from agent.store.arrow import schema

    db.register(held(table), pa.concat_tables([schema(table).empty_table(), *parts]))


def held(table: str) -> str:
    """The name of a table's in-memory rows."""
    return f"_hot_{table}"


def rows_of(table: str, files: Sequence[str]) -> str:
    """A query of a table's rows in memory (``hold``) and in these Parquet files, with the derived columns."""
    from agent.store.arrow import WALL_COLUMNS

    source = f"SELECT * FROM {held(table)}"
    if files:
        source += (
            f" UNION ALL BY NAME SELECT * FROM read_parquet([{', '.join(map(text, files))}], union_by_name = true)"
        )
    names = ", ".join(f"w.{c} AS {c}" if c in WALL_COLUMNS else quote(c) for c in columns(table))
    return f"SELECT {names} FROM (SELECT *, {WALL}(boot_id, t_ns) AS w FROM ({source}))"


def _latest(table: str, window: Window, *, bounded: bool) -> str:
    """A condition for the latest state of each object in the window, in a table whose rows are states; with ``bounded``
    also for the window's rows only.
    """
    within = " AND ".join(window.rows()) or "true"
    by, as_of = TABLES[table].latest_by, TABLES[table].as_of
    if as_of:  # unchanged state is not stored again, so it may be older than the window
        where = " AND ".join([*window.known(as_of), *(window.rows() if bounded else ())]) or "true"
        return f" WHERE {where} QUALIFY rank() OVER (PARTITION BY boot_id, {by} ORDER BY {as_of} DESC) = 1"
    if not by:
        return (
            f" WHERE {within}" if bounded and table != "loss" else ""
        )  # losses are selected by interval: see Answers.gaps
    return f" WHERE {within} QUALIFY row_number() OVER (PARTITION BY boot_id, {by} ORDER BY t_ns DESC) = 1"


def refuse_writes(db: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raises AgentError (exit 2) for a statement that writes: it would change only this process's memory, without an
    error.
    """
    for statement in db.extract_statements(sql):
        kind = str(statement.type.name)
        explained = _EXPLAIN.sub("", statement.query) if kind == "EXPLAIN" else statement.query
        if explained != statement.query:
            refuse_writes(db, explained)
        elif kind not in _READING:
            word = (re.search(r"[A-Za-z]+", _COMMENT.sub(" ", statement.query)) or ["this"])[0].upper()
            raise AgentError(
                f"{word} is refused: SQL is read-only here",
                why="what reads is taken: SELECT, FROM, WITH, DESCRIBE, SUMMARIZE, PIVOT, EXPLAIN",
                remedy="tickscope sql 'DESCRIBE finding'",
                exit_code=USAGE,
            )


def usage(message: str, sql: str, tables: Iterable[str]) -> AgentError:
    """Converts a DuckDB message to a usage error, with the nearest names for a missing column or table; columns are
    those of the tables that the query names.
    """
    first = message.partition("\n")[0]
    tables = set(mentioned(sql)) & set(tables) or tables
    if first.startswith("Out of Memory"):
        return AgentError(
            f"the query needs more than {MEMORY} of memory", remedy="query less: --since, --where, fewer columns"
        )
    if match := re.search(r'(?:column|Column with name) "?([\w.]+)"? (?:not found|does not exist)', first):
        return unknown(match[1], sorted({c for t in tables for c in columns(t)}), "column")
    if match := re.search(r"Table with name (\w+) does not exist", first):
        return unknown(match[1], list(TABLES), "table")
    if re.search(r"Overflow in .* of INT\d", first):
        return AgentError(
            f"bad SQL: {first}",
            why="a number without a decimal point has 32 or 64 bits, depending on its size",
            remedy="write 1000000000::BIGINT, or 1e9",
            exit_code=USAGE,
        )
    return AgentError(
        f"bad SQL: {first}",
        remedy="tickscope tables TABLE lists columns; text goes in 'single quotes'",
        exit_code=USAGE,
    )


def text(value: str) -> str:
    """Text as an SQL literal."""
    return "'" + value.replace("'", "''") + "'"
