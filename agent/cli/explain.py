"""tickscope explain: one finding in words, with its evidence."""

from __future__ import annotations

import re
from typing import Any

import click

from agent.cli import options
from agent.columns import NULL_I64
from agent.errors import NO_ROWS, USAGE, AgentError, printable

_WIDTH = 100
_TOLD = ("table", "what", "value", "unit", "baseline", "t_ns", "end_ns", "subject")


@click.command("explain")
@click.argument("finding", metavar="[ID|last]", default="last")
@options.common
def command(finding: str, fmt: str, store: str) -> None:
    """One finding in words: what was wrong, when, why, what speaks for it and what was ruled out.

    ID is a finding's id or the start of one, as `tickscope findings` shows it; `last`, the default, is the newest.

    \b
    tickscope explain last
    tickscope explain 3f9c -o json
    """
    import numpy as np

    from agent.cli.findings import in_wall_time, latest, left_open, none
    from agent.cli.gaps import tell, unjudged
    from agent.cli.output import emit, note
    from agent.store.query import Session

    if finding != "last" and not re.fullmatch(r"[0-9a-fA-F]{1,32}", finding):
        raise AgentError(f"no finding has the id {finding!r}", remedy="name an id that `tickscope findings` shows, or: last", exit_code=USAGE)
    with Session(store, ["finding", "loss", "probe_status"]) as session:
        gaps = session.gaps()
        rows = latest(session, "true" if finding == "last" else f"starts_with(finding_id, '{finding.lower()}')")
        if rows:
            row = rows[-1]
            ended, words = left_open(session, row), in_wall_time(session, row)
            began_ns = int(session.wall(row["boot_id"], np.array([row["start_ns"]], np.int64))[0])
            gaps = [gap for gap in gaps if _overlaps(gap, row)]
        left_out = [] if rows else unjudged(session)
        notes = [*session.notes, *left_out]
    tell(gaps if rows or finding == "last" else [], notes, fmt if rows else "table")
    if not rows:
        note(none(gaps, left_out) if finding == "last" else f"no finding's id starts with {finding}; see: tickscope findings")
        click.get_current_context().exit(NO_ROWS)
    if finding != "last" and len({row["finding_id"] for row in rows}) > 1:
        raise AgentError(f"{len(rows)} findings have an id that starts with {finding}", why=", ".join(row["finding_id"] for row in rows[:5]),
                         remedy="give more of the id", exit_code=USAGE)
    emit({"finding": row, "gaps": gaps}, fmt, lambda: click.echo("\n".join(map(printable, told({**row, "sentence": words}, began_ns, ended)))))


def _overlaps(gap: dict[str, Any], found: dict[str, Any]) -> bool:
    """Whether records were lost while the finding lasted."""
    first, last = (next(gap[name] for name in names if gap[name] is not None) for names in (("from_ns", "to_ns", "t_ns"), ("to_ns", "t_ns")))
    return bool(gap["boot_id"] == found["boot_id"] and first <= found["end_ns"] and last >= found["start_ns"])


def told(row: dict[str, Any], began_ns: int, left_open: bool = False) -> list[str]:
    """The finding as lines of text; times are relative to its start, which is ``began_ns`` by the wall clock (NULL_I64: not known).
    left_open: its agent ended before it did."""
    from agent.cli.cells import cell, duration

    start, end = row["start_ns"], row["end_ns"]
    wall = f"{cell('wall_ns', began_ns)}, " if began_ns != NULL_I64 else ""
    going = f"lasted {duration(end - start)}" if row["state"] == "closed" else f"still going on after {duration(end - start)}"
    going += ", when the agent ended" if left_open else ""
    lines = [f"Finding {row['finding_id']} ({'left open' if left_open else row['state']})", "", *_wrapped(row["sentence"], ""), "",
             f"  began    {wall}boot+{start / 1e9:.3f}; {going}", f"  symptom  {row['symptom']} of {row['subject']}",
             f"  cause    {row['cause']}, confidence {row['confidence']:.2f}"]
    others = [c for c in row["causes"] if c["cause"] != row["cause"]]
    if others:
        lines += ["", "Other causes that fit less well"]
        for c in others:
            lines += _wrapped(f"{c['cause']} ({c['confidence']:.2f}): {c['words']}", "  ")
    timed = sorted((e for e in row["evidence"] if "t_ns" in e), key=lambda e: e["t_ns"])
    if timed:
        lines += ["", "Timeline"] + [f"  {_relative(e['t_ns'] - start):>10}  {_entry(e)}" for e in timed]
    rest = [e for e in row["evidence"] if "t_ns" not in e]
    if rest:
        lines += ["", "Evidence"] + [f"  {_entry(e)}" for e in rest]
    if row["ruled_out"]:
        lines += ["", "Looked at, and no explanation"]
        for c in row["ruled_out"]:
            lines += _wrapped(f"{c['cause']}: {c['words']}", "  ")
    return lines


def _wrapped(text: str, indent: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent + ("  " if indent else ""))


def _relative(ns: int) -> str:
    from agent.cli.cells import duration

    return f"{'-' if ns < 0 else '+'}{duration(abs(ns))}"


def _entry(entry: dict[str, Any]) -> str:
    """One piece of evidence on one line."""
    value = _amount(entry.get("value"), entry.get("unit", ""))
    usual = f" (usually {_amount(entry['baseline'], entry.get('unit', ''))})" if "baseline" in entry else ""
    lasting = f", for {_amount(entry['end_ns'] - entry['t_ns'], 'ns')}" if "end_ns" in entry and "t_ns" in entry else ""
    of = f" of {entry['subject']}" if "subject" in entry else ""
    more = ", ".join(f"{k.removesuffix('_ns')} {_amount(v, 'ns') if k.endswith('_ns') and 'mono' not in k else v}"
                     for k, v in entry.items() if k not in _TOLD)
    return f"{entry['what'].replace('_', ' ')}{of}: {value}{usual}{lasting}" + (f"  [{more}]" if more else "")


def _amount(value: Any, unit: str) -> str:
    from agent.cli.cells import duration

    if unit in ("ns", "us", "s") and isinstance(value, (int, float)):
        return duration(value * {"ns": 1, "us": 1e3, "s": 1e9}[unit])
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return f"{text} {unit}" if unit else text
