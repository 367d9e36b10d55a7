"""``tickscope limiters show``: plots one limiter over time."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from agent.cli import options
from agent.common.printable import printable
from agent.errors import NO_ROWS, AgentError

if TYPE_CHECKING:
    from agent.ask.row_source import RowSource

_NEAR = 5


@click.command("show")
@click.argument("limiter", type=options.StoredName("limiter", "limiter_decision", "limiter_id"), metavar="ID")
@options.since("From this time on: 90s, 5m, 2h, 1d, ISO 8601, boot+SECONDS.", "1h")
@click.option("--until", metavar="TIME", help="Up to this time.")
@click.option("--pid", type=click.IntRange(1), metavar="N", help="Only decisions of this process.")
@options.reading
def command(limiter: str, since: str, until: str | None, pid: int | None, fmt: str, store: str) -> None:
    """Show one limiter over time: requested and admitted units, its limit and the clock jumps, with totals.

    ID is the id of the limiter, the beginning of the id, or a part of it that no other id has; `tickscope limiters`
    lists ids. Decisions of several processes are added up.

    \b
    tickscope limiters show shop:rate
    tickscope limiters show 'Handler).Pay' --since 6h
    tickscope limiters show shop:rate -o json
    """
    from agent.ask.question import Where
    from agent.cli.gaps import report_gaps
    from agent.cli.limiters_list import seen_in
    from agent.cli.limiters_series import series
    from agent.cli.output import emit_doc, emit_rows, note, quiet_pipe
    from agent.store.sources import opened

    with opened(
        store,
        ["limiter", "limiter_decision", "limiter_rate", "clock_change", "clock_offset", "loss"],
        since,
        until,
        whole=True,
    ) as source:
        name = _chosen(source, limiter)
        where = (Where("pid", "=", pid),) if pid is not None else ()
        rows = seen_in(source, Where("limiter_id", "=", name), *where)
        drawn = series(source, name, *where)
        gaps, notes = source.gaps(), source.notes
    if drawn is None:
        raise AgentError(
            f"{printable(name)} made no decision in process {pid} in that time",
            remedy="see: tickscope limiters -o json",
            exit_code=NO_ROWS,
        )
    report_gaps(gaps, notes, fmt)
    if fmt == "table":
        from agent.cli.limiters_text import text

        with quiet_pipe():
            click.echo("\n".join(text(drawn, _one(rows), shutil.get_terminal_size((100, 40)).columns)))
        if len(rows) > 1:
            note(
                f"note: of {len(rows)} processes together; --pid N shows one:"
                f" {', '.join(str(row['pid']) for row in rows[:_NEAR])}"
            )
    elif fmt == "json":
        lines = {name: value for name, value in asdict(drawn).items() if name not in ("pieces", "steps")}
        emit_doc(
            {
                **lines,
                "steps": [step._asdict() for step in drawn.steps],
                "processes": rows,
                "gaps": gaps,
                "rows": [asdict(p) for p in drawn.pieces],
            }
        )
    else:
        emit_rows(
            [asdict(piece) for piece in drawn.pieces], fmt, ("from_ns", "to_ns", "requested", "admitted", "limit")
        )


def _one(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of several processes: sums; other values are those of the process with the most decisions."""
    out = dict(rows[0])
    for name in ("decisions", "members", "per_s", "watch_cost"):
        known = [row[name] for row in rows if row[name] is not None]
        out[name] = sum(known) if known else None
    uses = [row["limit_use"] for row in rows if row["limit_use"] is not None]
    out["limit_use"] = sum(uses) / len(uses) if uses else None
    return out


def _chosen(source: RowSource, given: str) -> str:
    """The limiter id that ``given`` identifies. Raises AgentError: exit 3 if there is none, 2 if there are several."""
    from agent.ask.question import GroupValue, Question
    from agent.cli.chosen import chosen

    found = source.rows(
        Question(
            "limiter_decision",
            group=("limiter_id",),
            values=(GroupValue("decisions", "count"),),
            order=("-decisions", "limiter_id"),
        )
    )
    names = [row["limiter_id"] for row in found if row["limiter_id"]]
    if not names:
        raise AgentError(
            "no limiter made a decision in that time",
            remedy="widen --since, or see `tickscope probes`",
            exit_code=NO_ROWS,
        )
    return chosen(given, names, "limiter", "made a decision", "widen --since, or see `tickscope limiters`")
