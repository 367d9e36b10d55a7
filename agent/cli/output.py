"""Rows on stdout in the four formats, notes on stderr. Every verb prints through here."""

from __future__ import annotations

import csv
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from agent.cli import cells, layout
from agent.errors import AgentError, printable

SCHEMA = 1
Row = Mapping[str, Any]


def note(text: str) -> None:
    """A line for the human on stderr."""
    print(*layout.wrapped(printable(text), layout.room(sys.stderr), "", "  "), sep="\n", file=sys.stderr)


def echo(text: str, hang: int = 4) -> None:
    """A line for the human on stdout, whose continuation lines begin so far to the right where it is broken."""
    print(*layout.wrapped(printable(text), layout.room(sys.stdout), "", " " * hang), sep="\n")


@contextmanager
def quiet_pipe() -> Iterator[None]:
    """End quietly when the reader of stdout (``head``, ``less``) has gone. Raises AgentError where stdout cannot be
    written.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
        raise SystemExit(0) from None
    except OSError as error:
        _forget_stdout()
        raise AgentError("cannot write the output", why=str(error.strerror)) from error


def _forget_stdout() -> None:
    """Python flushes stdout once more at exit: let that succeed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def emit_rows(
    rows: Sequence[Row],
    fmt: str,
    columns: Sequence[str] | None = None,
    extra: Mapping[str, Any] | None = None,
    *,
    units: Mapping[str, str] | None = None,
    chosen: bool | None = None,
    below: str = "",
) -> None:
    """Print rows.

    columns: their order; by default that of the first row. extra: members of the JSON document beside ``rows`` (before
    it).
    units: unit of a column whose name does not end in it (``{"p50": "ns"}``), for the table format.
    chosen: whether the user named the columns, so that the table format hides none; None where the verb has no
    ``--columns``.
    below: a column of long text, which on a screen stands below its row.
    """
    names = list(columns if columns is not None else rows[0] if rows else ())
    with quiet_pipe():
        if fmt == "json":
            emit_doc({**(extra or {}), "rows": [{n: row.get(n) for n in names} for row in rows]})
        elif fmt == "ndjson":
            for row in rows:
                print(dumps({n: row.get(n) for n in names}))
        elif fmt == "csv":
            _csv(rows, names)
        else:
            _table(rows, names, units or {}, chosen, below)


def begin_stream(fmt: str, columns: Sequence[str]) -> None:
    """What comes before the rows of ``emit_stream``: the heading of a csv."""
    if fmt == "csv":
        _csv((), list(columns))
        sys.stdout.flush()


def emit_stream(rows: Iterable[Row], fmt: str, columns: Sequence[str]) -> None:
    """Print rows that are part of an endless stream, at once: ndjson (also for json), csv or plain cells."""
    for row in rows:
        if fmt == "csv":
            csv.writer(sys.stdout, lineterminator="\n").writerow([_csv_cell(row.get(n)) for n in columns])
        elif fmt == "table":
            print("  ".join(cells.cell(n, row[n]) for n in columns if row.get(n) is not None))
        else:
            print(dumps({n: row.get(n) for n in columns}))
    sys.stdout.flush()


def emit_doc(doc: Mapping[str, Any]) -> None:
    """Print one JSON document, with the schema's version as its first member."""
    with quiet_pipe():
        print(dumps({"schema": SCHEMA, **doc}))


def emit(doc: Mapping[str, Any], fmt: str, human: Callable[[], None]) -> None:
    """Print a document that is not rows: as JSON, or for the table format by ``human``."""
    if fmt == "table":
        with quiet_pipe():
            human()
    else:
        emit_doc(doc)


def dumps(value: Any) -> str:
    """Strict JSON: what JSON cannot say (NaN, infinities) is null, and what would act on a terminal is escaped."""
    text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=str)
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value


def _csv(rows: Iterable[Row], names: list[str]) -> None:
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


def _table(rows: Sequence[Row], names: list[str], units: Mapping[str, str], chosen: bool | None, below: str) -> None:
    if not rows:
        return
    width = layout.room(sys.stdout)
    text = {n: [cells.cell(n, row.get(n), units.get(n)) for row in rows] for n in names}
    right = frozenset(n for n in names if any(isinstance(row.get(n), (int, float)) for row in rows))
    shown = (
        names if chosen or width is None else [n for n in names if any(row.get(n) is not None for row in rows)] or names
    )
    under = text[below] if below in shown and width is not None else None
    beside = {n: text[n] for n in shown if under is None or n != below}
    if width is None:
        sizes = {n: max(len(n), *map(len, of)) for n, of in beside.items()}
    else:
        sizes = layout.widths(beside, [n for n in beside if n not in right], width, keep_all=bool(chosen))
    line = printable("  ".join(n.rjust(sizes[n]) if n in right else n.ljust(sizes[n]) for n in sizes).rstrip())
    print(f"\x1b[1m{line}\x1b[0m" if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else line)
    for i in range(len(rows)):
        print(*layout.lines({n: text[n][i] for n in sizes}, sizes, right), sep="\n")
        if under is not None:
            print(*layout.wrapped(under[i], width, "    "), sep="\n")
    if hidden := len(names) - len(sizes) - (under is not None):
        note(
            f"{hidden} empty or less important columns hidden: -o json shows all"
            + ("" if chosen is None else ", --columns chooses")
        )
