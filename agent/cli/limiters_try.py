"""``tickscope limiters try``: checks a declared function against a live process."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent.cli import options
from agent.errors import FAILURE, INTERRUPTED, NO_ROWS

if TYPE_CHECKING:
    import numpy as np

    from agent.cli.trial import Declarations, Trial

_COLUMNS = (
    "limiter_id",
    "result",
    "key",
    "cost",
    "limit_per_s",
    "burst",
    "window_ns",
    "remaining",
    "wait_ns",
    "duration_ns",
    "tid",
    "t_ns",
)
_WIDTHS = {"limiter_id": 26, "result": 9, "key": 20}


@click.command("try")
@click.argument("file", type=click.Path())
@click.option(
    "--pid",
    type=click.IntRange(min=1),
    required=True,
    metavar="N",
    help="The process to observe; only this process gets probes.",
)
@click.option(
    "--count",
    type=click.IntRange(1, 100_000),
    default=10,
    show_default=True,
    metavar="N",
    help="Stop after N decisions.",
)
@click.option(
    "--duration",
    type=options.Duration(),
    default="30s",
    show_default=True,
    metavar="S",
    help="Stop after this time: 90s, 5m.",
)
@options.live_output
def command(file: str, pid: int, count: int, duration: float, fmt: str) -> None:
    """Try the functions that FILE declares on process N: show ten decisions, or name the wrong line.

    FILE is tickscope.yaml, or a file with limiter_functions alone. Needs root, but no running agent. Keys are not
    hashed. Exit status 1: a line is wrong; 3: no decision was made.

    \b
    sudo tickscope limiters try shop.yaml --pid $(pgrep -n shop)
    """
    from agent.cli.output import note
    from agent.cli.record import Interruption
    from agent.cli.trial import Declarations, Trial, TriedProcess
    from agent.posix.privilege import require_root

    require_root(f"sudo tickscope limiters try {file} --pid {pid}")
    declarations = Declarations(Path(file))
    trial = Trial(declarations, TriedProcess(pid))
    interrupted = Interruption()
    try:
        trial.attach()
        for text in trial.notes:
            note(text)
        note(f"watching {', '.join(one.name for one in trial.functions)} in process {pid}, {trial.process.exe}")
        shown, wrong = _show(trial, declarations, count, time.monotonic() + duration, fmt, interrupted)
        begun = trial.begun()
        gone = trial.process.gone
    finally:
        interrupted.restore()
        trial.close()
    if not shown:
        _report_silence(begun, gone, duration, bool(interrupted))
    click.get_current_context().exit(
        FAILURE if wrong else INTERRUPTED if interrupted and shown < count else 0 if shown else NO_ROWS
    )


def _show(
    trial: Trial, declarations: Declarations, count: int, until: float, fmt: str, interrupted: Any
) -> tuple[int, bool]:
    """(number of decisions printed, whether some are implausible)."""
    from agent.cli.output import begin_stream, emit_rows, emit_stream, note, quiet_pipe
    from agent.cli.trial_checks import TrialChecks

    checks, rows, shown = TrialChecks(declarations, trial.functions), list[dict[str, Any]](), 0
    with quiet_pipe():
        begin_stream(fmt, _COLUMNS)
        if fmt == "table":
            print(_line({name: name.removesuffix("_ns") for name in _COLUMNS}))
        for records in trial.decisions(until, interrupted.__bool__):
            some = _rows(records[: count - shown])
            shown += len(some)
            if fmt == "table":
                print(*map(_line, some), sep="\n", flush=True)
            elif fmt == "json":
                rows += some
            else:
                emit_stream(some, fmt, _COLUMNS)
            for text in checks.of(records[: len(some)]):
                note(text)
            if shown >= count:
                break
        for text in checks.rest():
            note(text)
    if fmt == "json":
        emit_rows(rows, fmt, _COLUMNS, {"wrong": checks.reported})
    return shown, bool(checks.reported)


def _rows(records: np.ndarray) -> list[dict[str, Any]]:
    """The decisions as rows of limiter_decision, without the key."""
    from agent.instruments.limiters.decisions import decided, unnamed
    from agent.tables import TABLES

    table, rows, keys = TABLES["limiter_decision"], decided(records, unnamed), _keys(records)
    out = []
    for row, key in zip(rows, keys, strict=True):
        one: dict[str, Any] = {}
        for name in _COLUMNS:
            column, value = table.by_name[name], row[name].item()
            unknown = value == column.null or (isinstance(value, float) and math.isnan(value))
            one[name] = (
                None
                if unknown
                else (
                    column.word(value)
                    if column.kind == "enum"
                    else value.decode("utf-8", "replace")
                    if isinstance(value, bytes)
                    else value
                )
            )
        out.append({**one, "key": key})
    return out


def _keys(records: np.ndarray) -> list[str | None]:
    """The keys, as the program has them."""
    import numpy as np

    from agent.common.printable import printable
    from agent.limiters.catalogue import seen
    from agent.limiters.functions.declared import NUMBER
    from agent.limiters.reading import UNKNOWN

    found, libraries = list[str | None](), tuple(seen().values())
    for record in records:
        one = libraries[int(record["library"])].read.args[0]  # type: ignore[attr-defined]
        word = one.arguments.get("key")
        if word is not None and word.type:
            found.append(str(int(word.integers(np.array([record[NUMBER]]))[0])))
        elif word is not None and record["key_size"] != UNKNOWN:
            found.append(printable(bytes(record["key_text"])[: int(record["key_size"])].decode("utf-8", "replace")))
        else:
            found.append(None)
    return found


def _line(row: dict[str, Any]) -> str:
    """A line of the table. Its widths are fixed, because later rows are not known yet."""
    from agent.cli.cells import cell

    shown = {name: "-" if row.get(name) is None else cell(name, row[name]) for name in _COLUMNS[:-1]}
    return "  ".join(text.ljust(_WIDTHS.get(name, 9)) for name, text in shown.items()).rstrip()


def _report_silence(begun: int, gone: bool, duration: float, interrupted: bool) -> None:
    from agent.cli.output import note

    if begun:
        note(
            f"{begun} calls began and none returned: they wait inside the function, or leave it without a probed return"
        )
    elif gone:
        note("the process ended before it called the function")
    else:
        note(
            f"no call {'until then' if interrupted else f'in {duration:g} s'}: is it called at all meanwhile? A"
            " function that is inlined in some callers is not seen there (try --duration 5m)"
        )
