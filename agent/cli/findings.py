"""tickscope findings: lists findings with their causes."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from agent.cli import options
from agent.common.places import place_text
from agent.errors import NO_ROWS

if TYPE_CHECKING:
    from agent.ask.question import Condition, Where
    from agent.ask.row_source import RowSource

#: Columns of the table format; the other formats have every column.
SHOWN = ("finding_id", "state", "start_ns", "cause", "symptom", "confidence", "end_ns", "sentence")
#: The tables of a finding and its details.
TABLES_OF = ("finding", "verdict", "evidence")
_EVIDENCE = (
    "role",
    "cause",
    "what",
    "object",
    "value",
    "unit",
    "baseline",
    "table",
    "column",
    "keys",
    "t_ns",
    "end_ns",
    "details",
)
#: Members of a finding in JSON that come from those tables.
DETAILS = ("causes", "ruled_out", "not_checked", "evidence")
#: Of findings that stand for themselves.
NOT_MERGED = "coalesce(merged_into, '') = ''"
_COLUMNS = ("finding_id", "state", "began", "lasted", "cause", "symptom", "confidence", "sentence")


@click.command("findings")
@click.option("--open", "only_open", is_flag=True, help="Only open findings.")
@options.since("Only findings that changed since this time: 90s, 2h, 22:13, yesterday, ISO 8601, or boot+SECONDS.")
@click.option("--until", metavar="TIME", help="Findings in their state at this time.")
@click.option(
    "--cause",
    type=options.Catalogue("causes"),
    metavar="NAME",
    help="Only findings with this cause (`tickscope causes`).",
)
@click.option(
    "--symptom",
    type=options.Catalogue("symptoms"),
    metavar="NAME",
    help="Only findings with this symptom (`tickscope symptoms`).",
)
@click.option("--severity", type=click.Choice(["notice", "alarm"]), help="Only findings of this severity.")
@click.option("--pid", type=click.IntRange(1), metavar="N", help="Only findings about this process or caused by it.")
@options.reading
def command(
    only_open: bool,
    since: str | None,
    until: str | None,
    cause: str | None,
    symptom: str | None,
    severity: str | None,
    pid: int | None,
    fmt: str,
    store: str,
) -> None:
    """List findings in their latest state, ordered by their start, the newest last.

    Without findings the exit status is 3. `left open` is a finding that was open when its agent ended.
    `tickscope explain ID` shows a finding with its evidence.

    \b
    tickscope findings --since 1h
    tickscope findings --open -o json
    """
    from agent.ask.question import Condition, Where
    from agent.cli.gaps import report_gaps, unevaluated
    from agent.cli.output import note
    from agent.store.sources import opened

    with opened(store, [*TABLES_OF, "loss", "probe_status"], since, until) as source:
        wanted = {"state": "open" if only_open else None, "cause": cause, "symptom": symptom, "severity": severity}
        where: list[Where | Condition] = [Where(name, "=", value) for name, value in wanted.items() if value]
        where.append(Condition(NOT_MERGED))
        if pid:
            where.append(Condition(f"culprit_pid = {pid} OR regexp_matches(subject, '\\bpid {pid}\\b')"))
        rows = latest(source, *where)
        if only_open and not until:
            rows = [row for row in rows if not left_open(source, row)]
        if fmt == "table" and not until:
            rows = [{**row, "state": "left open"} if left_open(source, row) else row for row in rows]
        rows = [{**row, "sentence": in_wall_time(source, row, utc=fmt != "table")} for row in rows]
        rows = [{**row, **times(source, row, people=fmt == "table")} for row in rows]
        if fmt == "table":
            rows = [{**row, "sentence": _with_place(row)} for row in rows]
        if fmt != "table":
            rows = with_details(source, rows)
        gaps, left_out = source.gaps(), unevaluated(source)
        notes = [*source.notes, *left_out]
    show(rows, fmt, {"gaps": gaps}, _COLUMNS)
    report_gaps(gaps, notes, fmt)
    if not rows:
        words = none(gaps, left_out, " in that time" if since or until else " of that kind" if len(where) > 1 else "")
        if os.path.isfile(store):
            words = f"this recording has no findings; `tickscope replay {store}` computes them from its rows"
        note(words)
        click.get_current_context().exit(NO_ROWS)


def _with_place(row: dict[str, Any]) -> str:
    where = place_text(row)
    return f"{row['sentence']} In {where}." if where else str(row["sentence"])


def latest(source: RowSource, *where: Where | Condition) -> list[dict[str, Any]]:
    """The latest state of each finding in the source's window, in order of their start."""
    from agent.ask.question import Question

    return decoded(source.rows(Question("finding", where=where, order=("boot_id", "start_ns", "t_ns", "finding_id"))))


def left_open(source: RowSource, row: dict[str, Any]) -> bool:
    """Whether the finding is open although its agent has ended, so that its end is unknown."""
    from agent.common.host import boot_id

    since_ns = source.written_since_ns
    return row["state"] == "open" and (since_ns is None or row["boot_id"] != boot_id() or row["t_ns"] < since_ns)


def in_wall_time(source: RowSource, row: dict[str, Any], utc: bool) -> str:
    """A finding's sentence with wall times by the present offset history."""
    from agent.common.sentence import pieces, text_of

    return text_of(
        pieces(json.dumps(row.get("sentence_parts") or None), row["sentence"]),
        lambda t_ns: source.wall(row["boot_id"], t_ns),
        utc,
    )


def none(gaps: Sequence[dict[str, Any]], left_out: Sequence[str], when: str = "") -> str:
    """The message that there is no finding. It adds a warning if records that could have made one were lost or not
    evaluated.
    """
    from agent.cli.gaps import hides_findings

    if hides_findings(gaps) or left_out:
        return f"no findings{when}, but rows are missing or were not evaluated: see above"
    return f"no findings{when}"


def decoded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with their JSON columns decoded."""
    return [{**row, "sentence_parts": _list(row.get("sentence_parts"))} for row in rows]


def with_details(source: RowSource, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Findings with their causes, ruled-out causes and evidence."""
    from agent.ask.question import Question, Where

    its = Where("finding_id", "in", tuple({row["finding_id"] for row in rows}))
    verdicts, evidence = (
        source.rows(Question(table, where=(its,), within=False, order=("boot_id", *order)))
        for table, order in (("verdict", ("rank",)), ("evidence", ("t_ns", "end_ns", "table", "what")))
    )
    return [joined(row, verdicts, evidence) for row in rows]


def joined(
    finding: dict[str, Any], verdicts: Sequence[dict[str, Any]], evidence: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """A finding's row with the members ``DETAILS``: lists in the order of these rows, without null values."""
    mine = [[one for one in rows if _of(one, finding)] for rows in (verdicts, evidence)]
    seen = ({**e, "keys": _mapping(e["keys"]), "details": _mapping(e["details"])} for e in mine[1])
    return {
        **finding,
        "causes": [
            {"cause": v["cause"], "confidence": v["score"], "words": v["reason"]}
            for v in mine[0]
            if (v["score"] or 0.0) > 0 and v["cause"] != "unknown"
        ],
        "ruled_out": [{"cause": v["cause"], "words": v["reason"]} for v in mine[0] if v["ruled_out"]],
        "not_checked": [
            {"cause": v["cause"], "words": v["reason"]}
            for v in mine[0]
            if not v["ruled_out"] and (v["score"] or 0.0) <= 0 and v["cause"] != "unknown"
        ],
        "evidence": [{name: e[name] for name in _EVIDENCE if e[name] not in (None, "", {})} for e in seen],
    }


def _of(row: dict[str, Any], finding: dict[str, Any]) -> bool:
    return bool(row["finding_id"] == finding["finding_id"] and row.get("boot_id") == finding.get("boot_id"))


def _mapping(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _list(text: str | None) -> list[Any]:
    """A decoded JSON list; empty if the text is no list, as in a damaged or foreign file."""
    try:
        value = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def times(source: RowSource, row: dict[str, Any], *, people: bool = False) -> dict[str, Any]:
    """Start and end by the wall clock (RFC 3339; null if unknown or not ended) and the duration. people: as in the
    table format.
    """
    import numpy as np

    from agent.cli.cells import cell, duration
    from agent.columns import NULL_I64
    from agent.common.duration import instant
    from agent.common.instants import iso

    ends = (row["start_ns"], row["end_ns"])
    took = ends[1] - ends[0]
    walls = source.wall(row["boot_id"], np.array(ends, np.int64)).tolist()
    if people:
        return {
            "began": cell("start_ns", ends[0]) if walls[0] == NULL_I64 else iso(walls[0], 0),
            "lasted": "-" if instant(took) else duration(took),
        }
    began, ended = (None if wall == NULL_I64 else iso(wall) for wall in walls)
    return {
        "began": began,
        "ended": ended if row["state"] == "closed" else None,
        "lasted_s": 0.0 if instant(took) else took / 1e9,
    }


def show(
    rows: Sequence[dict[str, Any]], fmt: str, extra: dict[str, Any] | None = None, text_of: Sequence[str] = SHOWN
) -> None:
    """Prints findings in the given format. extra: further members of the JSON document. text_of: columns of the table
    format.
    """
    from agent.ask.names import columns
    from agent.cli.output import emit_rows

    more = [name for name in ("began", "ended", "lasted_s") if rows and name in rows[0]]
    every = [*columns("finding"), *more, *(DETAILS if fmt in ("json", "ndjson") else ())]
    emit_rows(rows, fmt, text_of if fmt == "table" else every, extra, below="sentence")
