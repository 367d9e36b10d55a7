"""Rows on stdout in the four formats, notes on stderr. Every verb prints through here."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from agent.cli import cells
from agent.errors import AgentError

SCHEMA = 1
Row = Mapping[str, Any]


def note(text: str) -> None:
    """A line for the human on stderr."""
    print(text, file=sys.stderr)


@contextmanager
def quiet_pipe() -> Iterator[None]:
    """End quietly when the reader of stdout (``head``, ``less``) has gone. Raises AgentError where stdout cannot be written."""
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


def emit_rows(rows: Sequence[Row], fmt: str, columns: Sequence[str] | None = None, extra: Mapping[str, Any] | None = None, *,
              units: Mapping[str, str] | None = None, chosen: bool | None = None) -> None:
    """Print rows.

    columns: their order; by default that of the first row. extra: members of the JSON document beside ``rows`` (before it).
    units: unit of a column whose name does not end in it (``{"p50": "ns"}``), for the table format.
    chosen: whether the user named the columns, so that the table format hides none; None where the verb has no ``--columns``.
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
            _table(rows, names, units or {}, chosen)


def emit_stream(rows: Iterable[Row], fmt: str, columns: Sequence[str]) -> None:
    """Print rows that are part of an endless stream, at once: ndjson (also for json), csv or plain cells, without heading."""
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
    """Strict JSON: what JSON cannot say (NaN, infinities) is null."""
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=str)


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
    writer.writerow(names)
    for row in rows:
        writer.writerow([_csv_cell(row.get(n)) for n in names])


def _csv_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return dumps(value) if isinstance(value, (list, tuple, Mapping)) else value


def _table(rows: Sequence[Row], names: list[str], units: Mapping[str, str], chosen: bool | None) -> None:
    if not rows:
        return
    terminal = sys.stdout.isatty()
    text = {n: [cells.cell(n, row.get(n), units.get(n)) for row in rows] for n in names}
    widths = {n: max(len(n), *map(len, text[n])) for n in names}
    shown = names
    if terminal and not chosen:
        filled = [n for n in names if any(row.get(n) is not None for row in rows)]
        shown = cells.fit(filled or names, widths, shutil.get_terminal_size().columns)
    right = {n for n in shown if any(isinstance(row.get(n), (int, float)) for row in rows)}
    line = "  ".join(n.rjust(widths[n]) if n in right else n.ljust(widths[n]) for n in shown).rstrip()
    print(f"\x1b[1m{line}\x1b[0m" if terminal and not os.environ.get("NO_COLOR") else line)
    for i in range(len(rows)):
        print("  ".join(text[n][i].rjust(widths[n]) if n in right else text[n][i].ljust(widths[n]) for n in shown).rstrip())
    if hidden := len(names) - len(shown):
        note(f"{hidden} empty or less important columns hidden: -o json shows all" + ("" if chosen is None else ", --columns chooses"))
