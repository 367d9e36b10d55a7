"""tickscope explain: one finding in words, with its evidence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from agent.cli import options
from agent.columns import NULL_I64
from agent.common.places import culprit_place, place_text
from agent.common.printable import printable
from agent.errors import NO_ROWS, USAGE, AgentError

if TYPE_CHECKING:
    from agent.ask.question import Where
    from agent.ask.row_source import RowSource

_WIDTH = 100
_AROUND_S = 10
_QUERY = re.compile(r"""tickscope query (\w+)((?: --[\w-]+ (?:"[^"]*"|'[^']*'|[^\s;,]+(?:,[^\s;,]+)*))*)""")


@click.command("explain")
@click.argument("finding", type=options.FindingId(), metavar="[ID|last]", default="last")
@options.reading
def command(finding: str, fmt: str, store: str) -> None:
    """Explain one finding: what was wrong, when, why, the evidence, and what was ruled out.

    ID is the id of a finding or the beginning of an id, as `tickscope findings` shows it. `last`, the default, is the
    finding that started last.

    \b
    tickscope explain last
    tickscope explain 3f9c -o json
    """
    from agent.cli.findings import latest, none
    from agent.cli.gaps import report_gaps, unevaluated
    from agent.cli.output import emit, note
    from agent.store.sources import opened

    with opened(store, tables_of()) as source:
        rows = latest(source, *with_id(finding))
        gaps = source.gaps()
        if rows:
            explained = Explained(source, rows[-1], utc=fmt != "table")
            gaps = [gap for gap in gaps if _overlaps(gap, explained.row)]
        left_out = [] if rows else unevaluated(source)
        notes = [*source.notes, *left_out]
    report_gaps(gaps if rows or finding == "last" else [], notes, fmt if rows else "table")
    if not rows:
        note(
            none(gaps, left_out)
            if finding == "last"
            else f"no finding's id starts with {finding}; see: tickscope findings"
        )
        click.get_current_context().exit(NO_ROWS)
    check_one(rows, finding)
    emit(
        {"finding": explained.row, "investigations": explained.profiles, "gaps": gaps},
        fmt,
        lambda: click.echo("\n".join(map(printable, explained.lines()))),
        {**explained.row, "investigations": explained.profiles, "gaps": gaps},
    )


def tables_of() -> list[str]:
    """The tables that an ``Explained`` is made of."""
    from agent.cli import profiles
    from agent.cli.findings import TABLES_OF

    return [*TABLES_OF, "investigation", *profiles.TABLES_OF, "loss", "probe_status"]


class Explained:
    """One finding with all that is known about it. row: its columns and details. utc: its sentence has UTC."""

    def __init__(self, source: RowSource, found: dict[str, Any], *, utc: bool = False) -> None:
        import numpy as np

        from agent.cli import profiles
        from agent.cli.findings import in_wall_time, left_open, times, with_details

        self.row = row = with_details(source, [found])[0]
        self._ended = source.written_by if left_open(source, row) else ""
        row["sentence"] = in_wall_time(source, row, utc=utc)
        row |= times(source, row)
        self._began_ns = int(source.wall(row["boot_id"], np.array([row["start_ns"]], np.int64))[0])
        self.profiles = profiles.read(source, row)

    def lines(self) -> list[str]:
        """For a terminal of its present width. Names in them may have control characters."""
        from agent.cli import profiles

        about = timeline(self.row, self._began_ns, self._ended)
        return [*about, *profiles.lines_of(self.profiles, self.row["start_ns"], _wrapped)]


def with_id(finding: str) -> list[Where]:
    """The condition for a finding whose id starts so; none for ``last``. Raises AgentError (exit 2) if it is no id."""
    from agent.ask.question import Where

    if finding == "last":
        return []
    if not re.fullmatch(r"[0-9a-fA-F]{1,32}", finding):
        raise AgentError(
            f"no finding has the id {finding!r}",
            remedy="name an id that `tickscope findings` shows, or: last",
            exit_code=USAGE,
        )
    return [Where("finding_id", "starts", finding.lower())]


def check_one(rows: Sequence[dict[str, Any]], finding: str) -> None:
    """Raises AgentError (exit 2) if several findings have an id that starts so."""
    if finding != "last" and len({row["finding_id"] for row in rows}) > 1:
        raise AgentError(
            f"{len(rows)} findings have an id that starts with {finding}",
            why=", ".join(row["finding_id"] for row in rows[:5]),
            remedy="give more characters of the id",
            exit_code=USAGE,
        )


def _overlaps(gap: dict[str, Any], found: dict[str, Any]) -> bool:
    """Whether records were lost while the finding lasted."""
    from agent.ask.row_source import gap_bounds

    first, last = gap_bounds(gap)
    return bool(gap["boot_id"] == found["boot_id"] and first <= found["end_ns"] and last >= found["start_ns"])


def timeline(row: dict[str, Any], began_ns: int, left_open: str = "") -> list[str]:
    """The finding as lines of text. Times are relative to its start. began_ns: the start in Unix ns, NULL_I64 if
    unknown. left_open: why its end is unknown, if so.
    """
    from agent.cli.cells import cell, duration
    from agent.common.duration import instant

    start, end = row["start_ns"], row["end_ns"]
    wall = f"{cell('wall_ns', began_ns)}, " if began_ns != NULL_I64 else ""
    going = (
        "over at once"
        if row["state"] == "closed" and instant(end - start)
        else (
            f"lasted {duration(end - start)}"
            if row["state"] == "closed"
            else f"still going on after {duration(end - start)}"
        )
    )
    going += f", when {left_open} ended" if left_open else ""
    lines = [
        f"Finding {row['finding_id']} ({'left open' if left_open else row['state']})",
        "",
        *_wrapped(row["sentence"], ""),
        "",
        *_wrapped(f"began    {wall}boot+{start / 1e9:.3f}; {going}", "  ", 11),
        *_wrapped(f"symptom  {row['symptom']} of {row['subject']}", "  ", 11),
        *(_wrapped(f"where    {where}", "  ", 11) if (where := place_text(row)) else []),
        *_wrapped(
            f"cause    {row['cause']}{_detail(row)}, confidence {row['confidence'] or 0.0:.2f}"
            f"{meaning_of(row['cause'])}",
            "  ",
            11,
        ),
        *(_wrapped(f"culprit  {culprit}", "  ", 11) if (culprit := culprit_of(row)) else []),
        *(_wrapped(f"path     {path}", "  ", 11) if (path := path_of(row)) else []),
        *(_wrapped(f"next     {filled(todo, row, began_ns)}", "  ", 11) if (todo := next_step(row)) else []),
        *([f"  about    tickscope causes {page}"] if (page := page_name(row)) else []),
    ]
    others = [c for c in row["causes"] if c["cause"] != row["cause"]]
    if others:
        lines += ["", "Other causes that fit less well"]
        for c in others:
            lines += _wrapped(f"{c['cause']} ({c['confidence']:.2f}): {c['words']}", "  ")
    timed = [e for e in row["evidence"] if e["role"] == "timeline"]
    if timed:
        lines += ["", "Timeline"]
        for e in timed:
            lasted = e["end_ns"] - e["t_ns"]
            entry = entry_text(e) if instant(lasted) else f"{entry_text(e)}, for {amount_text(lasted, 'ns')}"
            lines += _wrapped(f"{_relative(e['t_ns'] - start):>10}  {entry}", "  ", 14)
    for role, title in (("for", "Evidence"), ("against", "Evidence against other causes")):
        its = (e for e in row["evidence"] if e["role"] == role)
        if some := sorted(its, key=lambda e: e["cause"] != row["cause"]):
            lines += ["", title]
            for e in some:
                lines += _wrapped(f"{e['cause']}: {entry_text(e)}", "  ")
    for name, title in (("ruled_out", "Ruled out"), ("not_checked", "Not checked")):
        lines += ["", title] if row.get(name) else []
        for c in row.get(name, ()):
            lines += _wrapped(f"{c['cause']}: {c['words']}", "  ")
    return lines


def _detail(row: dict[str, Any]) -> str:
    return f" ({row['cause_detail']})" if row.get("cause_detail") else ""


def culprit_of(row: dict[str, Any]) -> str:
    """The culprit; empty if unknown."""
    from agent.correlate.words import process

    pid, comm, what = (row.get(f"culprit_{name}") for name in ("pid", "comm", "object"))
    culprit = process(comm or "", pid) if comm or pid is not None else ""
    where = f"in {place}" if (place := culprit_place(row)) else ""
    return ", ".join(part for part in (culprit, where, what) if part)


def path_of(row: dict[str, Any]) -> str:
    """From the subject to the culprit, if processes between them waited, too; else empty."""
    from agent.correlate.words import process

    via = (row.get("via") or "").split(", ") if row.get("via") else []
    pid, comm = row.get("culprit_pid"), row.get("culprit_comm") or ""
    end = [process(comm, pid)] if pid is not None and process(comm, pid) not in via else []
    return " -> ".join([row["subject"], *via, *end]) if via else ""


def next_step(row: dict[str, Any]) -> str:
    """What to do about the cause; what to check if the cause is unknown."""
    from agent.correlate.catalogue import causes, symptoms

    if (cause := causes().get(row["cause"])) and cause.name != "unknown":
        return cause.todo
    symptom = symptoms().get(row["symptom"])
    return symptom.todo if symptom else ""


def filled(todo: str, row: dict[str, Any], began_ns: int) -> str:
    """The next steps with commands narrowed down to the finding's processes and time, _AROUND_S on each side. Uses wall
    time if ``began_ns`` (Unix ns) is known.
    """
    from agent.tables import TABLES

    pids = sorted(
        {int(pid) for pid in (row.get("culprit_pid"), *re.findall(r"\bpid (\d+)", row["subject"] or "")) if pid}
    )
    of = f"pid = {pids[0]}" if len(pids) == 1 else f"pid IN ({', '.join(map(str, pids))})"

    def narrowed(match: re.Match[str]) -> str:
        options, where = match[2], re.search(r""" --where ("([^"]*)"|'([^']*)')""", match[2])
        if match[1] not in TABLES:
            return match[0]
        conditions = [of] if pids and "pid" in TABLES[match[1]].by_name else []
        if where:
            options = options.replace(where[0], "")
            conditions.append(f"({where[2] or where[3]})" if conditions else where[2] or where[3])
        condition = f' --where "{" AND ".join(conditions)}"' if conditions else ""
        return f"tickscope query {match[1]}{_around(row, began_ns)}{condition}{options}"

    todo = _QUERY.sub(narrowed, todo).replace("tickscope explain last", f"tickscope explain {row['finding_id'][:8]}")
    return re.sub(r"\bPID\b", str(pids[0]), todo) if len(pids) == 1 else todo


def _around(row: dict[str, Any], began_ns: int) -> str:
    from agent.common.instants import iso

    since, until = -_AROUND_S, (row["end_ns"] - row["start_ns"]) // 10**9 + 1 + _AROUND_S
    if began_ns == NULL_I64:
        return f" --since boot+{row['start_ns'] // 10**9 + since} --until boot+{row['start_ns'] // 10**9 + until}"
    return f" --since {iso(began_ns + since * 10**9, 0)} --until {iso(began_ns + until * 10**9, 0)}"


def page_name(row: dict[str, Any]) -> str:
    """The name that `tickscope causes` describes; empty if this version does not know it."""
    from agent.correlate.catalogue import causes, symptoms

    if row["cause"] in causes() and row["cause"] != "unknown":
        return str(row["cause"])
    return str(row["symptom"]) if row["symptom"] in symptoms() else ""


def meaning_of(cause: str) -> str:
    """The meaning of the cause; empty if this version does not know it."""
    from agent.correlate.catalogue import causes

    return f": {causes()[cause].meaning}" if cause in causes() else ""


def _wrapped(text: str, indent: str, hang: int = 0) -> list[str]:
    import sys

    from agent.cli.layout import room, wrapped

    return wrapped(
        text, min(room(sys.stdout) or _WIDTH, _WIDTH), indent, " " * hang or indent + ("  " if indent else "")
    )


def _relative(ns: int) -> str:
    from agent.cli.cells import duration

    return f"{'-' if ns < 0 else '+'}{duration(abs(ns))}"


def entry_text(entry: dict[str, Any]) -> str:
    """One piece of evidence on one line."""
    value = f": {amount_text(entry['value'], entry.get('unit', ''))}" if "value" in entry else ""
    usual = f" (usually {amount_text(entry['baseline'], entry.get('unit', ''))})" if "baseline" in entry else ""
    of = f", {entry['object']}" if "object" in entry else ""
    more = ", ".join(
        f"{k.removesuffix('_ns')} {amount_text(v, 'ns') if k.endswith('_ns') else v}"
        for k, v in entry.get("details", {}).items()
        if "mono" not in k
    )
    return f"{entry['what'].replace('_', ' ')}{of}{value}{usual}" + (f"  [{more}]" if more else "")


def amount_text(value: Any, unit: str) -> str:
    from agent.cli.cells import duration

    if unit in ("ns", "us", "s") and isinstance(value, (int, float)):
        return duration(value * {"ns": 1, "us": 1e3, "s": 1e9}[unit])
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return f"{text} {unit}" if unit else text
