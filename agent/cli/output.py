"""Rows on stdout in the four formats, notes on stderr. Every verb prints with this module."""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from agent.cli import cells, layout
from agent.common.printable import printable
from agent.errors import AgentError

SCHEMA = 1
_TABLE_ROWS = 1000
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=str)
Row = Mapping[str, Any]


def coloured(stream: TextIO) -> bool:
    """Whether escape sequences may be written: the stream is a terminal that supports them, and NO_COLOR is not set."""
    return stream.isatty() and knows_escapes() and not os.environ.get("NO_COLOR")


def knows_escapes() -> bool:
    """Whether a terminal supports escape sequences, by TERM."""
    return os.environ.get("TERM") not in (None, "", "dumb")


def note(text: str) -> None:
    """Prints a note on stderr."""
    print(*layout.wrapped(printable(text), layout.room(sys.stderr), "", "  "), sep="\n", file=sys.stderr)


def echo(text: str, hang: int = 4) -> None:
    """Prints a line on stdout. If it is broken, further lines are indented by ``hang``."""
    print(*layout.wrapped(printable(text), layout.room(sys.stdout), "", " " * hang), sep="\n")


@contextmanager
def quiet_pipe() -> Iterator[None]:
    """Ends quietly when the reader of stdout (``head``, ``less``) has gone. Raises AgentError if stdout cannot be
    written.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        forget_stdout()
        raise SystemExit(0) from None
    except OSError as error:
        forget_stdout()
        raise AgentError("cannot write the output", why=str(error.strerror)) from error


def forget_stdout() -> None:
    """Makes Python's flush at exit succeed."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(null, stream.fileno())
    os.close(null)


def emit_rows(
    rows: Iterable[Row],
    fmt: str,
    columns: Sequence[str] | None = None,
    extra: Mapping[str, Any] | None = None,
    *,
    after: Callable[[], Mapping[str, Any]] | None = None,
    units: Mapping[str, str] | None = None,
    chosen: bool | None = None,
    below: str = "",
    measure: str = "",
) -> None:
    """Prints rows as they come. The table format takes its column widths from the first _TABLE_ROWS of them.

    columns: their order; by default that of the first row. extra, after: members of the JSON document before and after
    ``rows``. units: unit of a column whose name has none (``{"p50": "ns"}``), for the table format. chosen: whether the
    user named the columns, so that the table format hides none; None if the verb has no ``--columns``. below: a column
    of long text, which a screen shows below its row. measure: the column that a narrow screen leaves out last.
    """
    rows = iter(rows)
    if columns is None:
        first = list(itertools.islice(rows, 1))
        columns, rows = list(first[0]) if first else [], itertools.chain(first, rows)
    with quiet_pipe():
        if fmt == "json":
            sys.stdout.write(f'{dumps({"schema": SCHEMA, **(extra or {})})[:-1]}, "rows": [')
            for i, row in enumerate(rows):
                sys.stdout.write(("" if i == 0 else ", ") + dumps({n: row.get(n) for n in columns}))
            members = dumps(after() if after else {})[1:-1]
            sys.stdout.write(f"]{', ' if members else ''}{members}}}\n")
        elif fmt == "ndjson":
            for row in rows:
                print(dumps({n: row.get(n) for n in columns}))
        elif fmt == "csv":
            _csv(rows, columns)
        else:
            _table(rows, columns, units or {}, chosen, below, measure)


def begin_stream(fmt: str, columns: Sequence[str]) -> None:
    """Prints what precedes the rows of ``emit_stream``: the heading of a csv."""
    if fmt == "csv":
        _csv((), columns)
        sys.stdout.flush()


def emit_stream(rows: Iterable[Row], fmt: str, columns: Sequence[str]) -> None:
    """Prints rows of an endless stream at once: ndjson (also for json), csv or plain cells."""
    for row in rows:
        if fmt == "csv":
            csv.writer(sys.stdout, lineterminator="\n").writerow([_csv_cell(row.get(n)) for n in columns])
        elif fmt == "table":
            print("  ".join(cells.cell(n, row[n]) for n in columns if row.get(n) is not None))
        else:
            print(dumps({n: row.get(n) for n in columns}))
    sys.stdout.flush()


def emit_doc(doc: Mapping[str, Any]) -> None:
    """Prints one JSON document, with the schema's version as its first member."""
    with quiet_pipe():
        print(dumps({"schema": SCHEMA, **doc}))


def emit(doc: Mapping[str, Any], fmt: str, human: Callable[[], None], row: Row | None = None) -> None:
    """Prints a document that is not rows: as JSON, or in the table format by ``human``. row: the same as one row, for
    csv; by default the document.
    """
    if fmt == "table":
        with quiet_pipe():
            human()
    elif fmt == "csv":
        emit_rows([row or doc], fmt)
    else:
        emit_doc(doc)


def dumps(value: Any) -> str:
    """Strict JSON: NaN and infinities become null, and terminal control characters are escaped."""
    try:
        text = _JSON.encode(value)
    except ValueError:
        text = _JSON.encode(_finite(value))
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value


def _csv(rows: Iterable[Row], names: Sequence[str]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(map(printable, names))
    for row in rows:
        writer.writerow([_csv_cell(row.get(n)) for n in names])


def _csv_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, bytes)):
        return printable(value)
    return dumps(value) if isinstance(value, (list, tuple, Mapping)) else value


def _table(
    rows: Iterator[Row], names: Sequence[str], units: Mapping[str, str], chosen: bool | None, below: str, measure: str
) -> None:
    batch = list(itertools.islice(rows, _TABLE_ROWS))
    if not batch:
        return
    width = layout.room(sys.stdout)
    text = _cells(batch, names, units)
    right = frozenset(n for n in names if any(isinstance(row.get(n), (int, float)) for row in batch))
    shown = (
        names
        if chosen or width is None
        else [n for n in names if any(row.get(n) is not None for row in batch)] or names
    )
    under = below in shown and width is not None
    beside = {n: text[n] for n in shown if not under or n != below}
    if width is None:
        sizes = {n: max(len(n), *map(len, of)) for n, of in beside.items()}
    else:
        sizes = layout.widths(
            beside, [n for n in beside if n not in right], width, keep_all=bool(chosen), measure=measure
        )
    line = printable("  ".join(n.rjust(sizes[n]) if n in right else n.ljust(sizes[n]) for n in sizes).rstrip())
    print(f"\x1b[1m{line}\x1b[0m" if coloured(sys.stdout) else line)
    while batch:
        for i in range(len(batch)):
            row = layout.lines({n: text[n][i] for n in sizes}, sizes, right)
            if under:
                row = [f"\x1b[1m{part}\x1b[0m" if coloured(sys.stdout) else part for part in row]
            print(*row, sep="\n")
            if under:
                print(*layout.wrapped(text[below][i], width, "    "), sep="\n")
        batch = list(itertools.islice(rows, _TABLE_ROWS))
        text = _cells(batch, names, units)
    if hidden := len(names) - len(sizes) - under:
        note(
            f"{hidden} empty or less important columns hidden: -o json shows all"
            + ("" if chosen is None else ", --columns chooses")
        )


def _cells(rows: Sequence[Row], names: Sequence[str], units: Mapping[str, str]) -> dict[str, list[str]]:
    return {n: [cells.cell(n, row.get(n), units.get(n)) for row in rows] for n in names}
