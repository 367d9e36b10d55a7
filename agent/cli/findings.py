"""tickscope findings: what was wrong, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from agent.cli import options
from agent.errors import NO_ROWS

if TYPE_CHECKING:
    from agent.store.query import Session

#: What the table format shows; the other formats have every column.
SHOWN = ("finding_id", "state", "start_ns", "end_ns", "symptom", "cause", "confidence", "sentence")


@click.command("findings")
@click.option("--open", "only_open", is_flag=True, help="Only those that still go on.")
@click.option("--since", metavar="TIME", help="Changed since then: 90s, 5m, 2h, 1d, ISO 8601, or boot+SECONDS.")
@click.option("--until", metavar="TIME", help="As they stood then.")
@options.common
def command(only_open: bool, since: str | None, until: str | None, fmt: str, store: str) -> None:
    """Findings in their latest state, the newest last.

    Nothing wrong, no finding: the exit status is then 3. One that still went on when its agent ended is left open. `tickscope explain last` tells one with its evidence.

    \b
    tickscope findings --since 1h
    tickscope findings --open -o json
    """
    from agent.cli.gaps import tell, unjudged
    from agent.cli.output import note
    from agent.store.query import Session

    with Session(store, ["finding", "loss", "probe_status"], since, until) as session:
        rows = latest(session, "state = 'open'" if only_open else "true")
        if only_open and not until:
            rows = [row for row in rows if not left_open(session, row)]
        if fmt == "table" and not until:
            rows = [{**row, "state": "left open"} if left_open(session, row) else row for row in rows]
        if fmt == "table":
            rows = [{**row, "sentence": in_wall_time(session, row)} for row in rows]
        gaps, left_out = session.gaps(), unjudged(session)
        notes = [*session.notes, *left_out]
    show(rows, fmt, {"gaps": gaps})
    tell(gaps, notes, fmt)
    if not rows:
        note(none(gaps, left_out, " in that time" if since or until else ""))
        click.get_current_context().exit(NO_ROWS)


def latest(session: Session, where: str) -> list[dict[str, Any]]:
    """The latest state of each finding within the session's window, the newest last; ``where`` is a SQL condition."""
    return decoded(session.run(f"SELECT * FROM finding WHERE {where} ORDER BY {session.order()}, finding_id").dicts())


def left_open(session: Session, row: dict[str, Any]) -> bool:
    """Open, and the agent that followed it has ended: how it went on is not known."""
    from agent.store.window import this_boot

    since_ns = session.written_since_ns
    return row["state"] == "open" and (since_ns is None or row["boot_id"] != this_boot() or row["t_ns"] < since_ns)


def in_wall_time(session: Session, row: dict[str, Any]) -> str:
    """A finding's sentence for people."""
    from agent.clock.instants import dated

    return dated(row["sentence"] or "", lambda t_ns: session.wall(row["boot_id"], t_ns))


def none(gaps: Sequence[dict[str, Any]], left_out: Sequence[str], when: str = "") -> str:
    """That there is no finding, in words; no good news where records that could have made one were lost or not looked at."""
    from agent.cli.gaps import hides_findings

    if hides_findings(gaps) or left_out:
        return f"no findings{when}, but not everything was seen: see above"
    return f"no findings: nothing wrong was seen{when}"


def decoded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with their JSON texts as values."""
    return [{**row, **{name: json.loads(row[name] or "[]") for name in ("causes", "evidence", "ruled_out")}} for row in rows]


def show(rows: Sequence[dict[str, Any]], fmt: str, extra: dict[str, Any] | None = None) -> None:
    """Prints findings in the asked format. extra: members of the JSON document beside them."""
    from agent.cli.output import emit_rows
    from agent.store.names import columns

    emit_rows(rows, fmt, SHOWN if fmt == "table" else columns("finding"), extra, chosen=True)
