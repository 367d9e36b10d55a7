"""tickscope limiters: the rate limiters that took decisions."""

from __future__ import annotations

from typing import Any

import click

from agent.cli import options
from agent.errors import NO_ROWS

_COLUMNS = ("limiter_id", "library", "library_version", "source", "pid", "comm", "decisions", "allowed", "refused", "delayed", "errors",
            "limit_per_s", "burst", "step_immune", "on_step_back", "on_step_forward", "sample_rate", "last_ns")
_KNOWN = ("library", "language", "clock", "on_step_back", "on_step_forward", "versions", "probed")
_SQL = """
SELECT limiter_id, library, library_version, source, pid, last(comm ORDER BY t_ns) AS comm, count(*) AS decisions,
       count(*) FILTER (result = 'allowed') AS allowed, count(*) FILTER (result = 'refused') AS refused,
       count(*) FILTER (result = 'delayed') AS delayed, count(*) FILTER (result = 'error') AS errors,
       last(limit_per_s ORDER BY t_ns) AS limit_per_s, last(burst ORDER BY t_ns) AS burst, bool_and(step_immune) AS step_immune,
       min(sample_rate) AS sample_rate, max(t_ns) AS last_ns
FROM limiter_decision WHERE {where}
GROUP BY boot_id, limiter_id, library, library_version, source, pid, proc_start_ns
ORDER BY decisions DESC, limiter_id, pid
"""
_BINARIES = """
SELECT probe, last(state ORDER BY t_ns) AS state, reason, last(remedy ORDER BY t_ns) AS remedy
FROM probe_status WHERE probe LIKE 'limiter:%' AND {where} GROUP BY probe, reason ORDER BY max(t_ns)
"""


@click.command("limiters")
@click.option("--since", metavar="TIME", default="5m", show_default=True, help="Decisions from this time on: 90s, 5m, 2h, ISO 8601, or boot+SECONDS.")
@click.option("--known", is_flag=True, help="List the limiter libraries that are known and what a clock step does to them. Needs no store.")
@options.common
def command(since: str, known: bool, fmt: str, store: str) -> None:
    """Rate limiters: who uses them, their decisions, limits, and what a clock step would do to each.

    Counts are of the decisions seen: where sample_rate is below 1, a share of them. On stderr: Go programs that contain
    a known limiter and cannot be watched, with the reason.
    """
    from agent.cli.gaps import tell
    from agent.cli.output import emit_rows, note

    if known:
        emit_rows(_known(), fmt, _KNOWN)
        return
    from agent.store.query import Session

    with Session(store, ["limiter_decision", "probe_status", "loss"], since) as session:
        where = " AND ".join(session.window.rows()) or "true"
        rows = [_judged(row) for row in session.run(_SQL.format(where=where)).dicts()]
        binaries = session.run(_BINARIES.format(where=where)).dicts()
        notes, gaps = session.notes, session.gaps()
    emit_rows(rows, fmt, _COLUMNS, {"binaries": binaries, "gaps": gaps})
    tell(gaps, notes, fmt)
    if fmt != "json":
        for one in binaries:
            if one["state"] in ("unavailable", "degraded"):
                note(f"{one['state']}: {one['reason']}" + (f" (try: {one['remedy']})" if one["remedy"] else ""))
    if not rows:
        note("no limiter decisions: widen --since, or see `tickscope probes`")
        click.get_current_context().exit(NO_ROWS)


def _judged(row: dict[str, Any]) -> dict[str, Any]:
    """Adds what a step does to this limiter."""
    from agent.limiters.catalogue import look_up

    entry = look_up(row["library"] or "", row["library_version"] or "")
    back, forward = ("none", "none") if row["step_immune"] else (entry.back, entry.forward) if entry else (None, None)
    return {**row, "on_step_back": back, "on_step_forward": forward}


def _known() -> list[dict[str, Any]]:
    from agent.limiters.catalogue import CATALOGUE

    return [{"library": one.library, "language": one.language, "clock": one.clock, "on_step_back": one.back,
             "on_step_forward": one.forward, "versions": None if one.versions == ".*" else one.versions, "probed": one.probed} for one in CATALOGUE]
