"""tickscope report: a finding or a time as one HTML file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from agent.cli import options
from agent.errors import NO_ROWS, AgentError

if TYPE_CHECKING:
    from agent.ask.row_source import RowSource
    from agent.cli.report_read import ReportSpan

_SECOND = 10**9
#: What is shown before a finding, so that the usual values are seen, and behind it; both more if it lasted longer.
_BEFORE_S, _AFTER_S, _MOST_S = 120, 30, 3600


@click.command("report")
@click.argument("finding", type=options.FindingId(), metavar="[ID|last]", required=False)
@click.option(
    "-o", "--output", "path", required=True, type=click.Path(dir_okay=False), help="File to write; - is stdout."
)
@options.since("Instead of a finding, all from this time on: 1h, 22:13, yesterday, ISO 8601, boot+SECONDS.")
@click.option("--until", metavar="TIME", help="With --since: up to this time, not including it.")
@options.store
def command(finding: str | None, path: str, since: str | None, until: str | None, store: str) -> None:
    """Write a finding, or a time, as one HTML file: what was wrong, the cause, and curves on one time axis.

    The file loads nothing from the network. ID is the id of a finding or the beginning of an id; without ID and --since
    it is the finding that started last.

    \b
    tickscope report last -o incident.html
    tickscope report --since 1h -o hour.html
    """
    from agent.ask.window import Bound
    from agent.cli.findings import TABLES_OF as FINDING_TABLES
    from agent.cli.output import note
    from agent.cli.report_page import document, page
    from agent.cli.report_read import TABLES_OF
    from agent.store.sources import opened

    if finding is not None and (since or until):
        raise click.UsageError("name a finding or a time (--since, --until), not both")
    if until and not since:
        raise click.UsageError("--until needs --since")
    with opened(store, [*TABLES_OF, *FINDING_TABLES], since, until) as source:
        chosen, span = _in_window(source) if since else _around(source, finding or "last")
    ends = (Bound(span.boot_id, t_ns, None) for t_ns in (span.from_ns, span.to_ns))
    with opened(store, _every_table(), *ends) as source:
        made = document(source, span, chosen)
    text = page(made)
    if path == "-":
        sys.stdout.write(text)
        return
    try:
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
    except OSError as error:
        raise AgentError(f"cannot write {path}: {error.strerror}", remedy="name another place: -o FILE") from error
    for one in made["notes"]:
        note(f"note: {one}")
    count = len(made["findings"])
    note(f"wrote {path}: {count} finding{'' if count == 1 else 's'}, {len(text.encode()) / 1e3:.0f} kB")


def _every_table() -> list[str]:
    """Evidence may be of any table."""
    from agent.tables import TABLES

    return list(TABLES)


def _around(source: RowSource, finding: str) -> tuple[str, ReportSpan]:
    from agent.cli.explain import check_one, with_id
    from agent.cli.findings import latest
    from agent.cli.report_read import ReportSpan, rows_between

    rows = latest(source, *with_id(finding))
    if not rows:
        some = "there are no findings" if finding == "last" else f"no finding's id starts with {finding}"
        remedy = "see: tickscope findings; a report of a time: --since 1h"
        raise AgentError(some, remedy=remedy, exit_code=NO_ROWS)
    check_one(rows, finding)
    row = rows[-1]
    lasted = row["end_ns"] - row["start_ns"]
    before = min(max(_BEFORE_S * _SECOND, lasted), _MOST_S * _SECOND)
    after = min(max(_AFTER_S * _SECOND, lasted // 4), _MOST_S * _SECOND)
    start, end = max(0, row["start_ns"] - before), row["end_ns"] + after
    first, last = rows_between(source, row["boot_id"], f"t_ns >= {start} AND t_ns <= {end}") or (start, end)
    return row["finding_id"], ReportSpan(row["boot_id"], min(first, row["start_ns"]), max(last, row["end_ns"]) + 1)


def _in_window(source: RowSource) -> tuple[str, ReportSpan]:
    from agent.cli.report_read import ReportSpan, rows_between

    for boot in source.boots[::-1]:
        if found := rows_between(source, boot, " AND ".join(source.window.rows())):
            return "", ReportSpan(boot, found[0], found[1] + 1)
    raise AgentError("nothing to report: no rows in that time", remedy="widen --since", exit_code=NO_ROWS)
