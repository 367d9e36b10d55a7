"""tickscope limiters: lists the rate limiters that made decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agent.cli import limiters_replay, limiters_show, limiters_try, options
from agent.errors import NO_ROWS

if TYPE_CHECKING:
    from agent.ask.question import Question

_COLUMNS = (
    "limiter_id",
    "version",
    "clock",
    "step_proof",
    "per_s",
    "refused_share",
    "limit_use",
    "watch_cost",
    "state",
    "pid",
    "decisions",
    "library",
    "program",
    "comm",
    "allowed",
    "refused",
    "delayed",
    "cancelled",
    "errors",
    "basis",
    "allowed_low",
    "allowed_high",
    "refused_low",
    "refused_high",
    "limit_per_s",
    "limit_most",
    "unlimited",
    "burst",
    "burst_most",
    "window_ns",
    "members",
    "also_asked_by",
    "keys",
    "site",
    "file",
    "line",
    "build_id",
    "library_version",
    "source",
    "step_immune",
    "on_step_back",
    "on_step_forward",
    "sample_rate",
    "last_ns",
    "path",
    "boot_id",
    "proc_start_ns",
)
#: Columns of the table format, with their headings. The process is on a line below.
_SHOWN = {
    "program": "program",
    "library": "library",
    "version": "version",
    "clock": "clock",
    "step_proof": "proof",
    "per_s": "per_s",
    "refused_share": "refused",
    "limit_use": "used",
    "watch_cost": "cost",
}
_VERSION = 10  # characters of a version
_UNITS = {"refused": "%", "used": "%", "cost": "%"}
_KNOWN = ("library", "language", "clock", "algorithm", "on_step_back", "on_step_forward", "versions", "probed")


def _binaries() -> Question:
    """The query for programs that contain a known limiter, the latest status last."""
    from agent.ask.question import GroupValue, Question, Where

    return Question(
        "probe_status",
        ("probe", "state", "reason", "remedy"),
        (Where("probe", "starts", "limiter:"),),
        group=("probe", "reason"),
        values=(
            GroupValue("state", "last", "state"),
            GroupValue("remedy", "last", "remedy"),
            GroupValue("last_ns", "max", "t_ns"),
        ),
        order=("last_ns",),
    )


@click.group("limiters", cls=options.VerbGroup, invoke_without_command=True, subcommand_metavar="[VERB] [ARGS]...")
@options.since("Only decisions from this time on: 90s, 5m, 2h, ISO 8601, or boot+SECONDS.", "5m")
@click.option(
    "--known",
    is_flag=True,
    help="List the known limiter libraries and what a clock step does to them. Needs no store.",
)
@options.reading
@click.pass_context
def command(ctx: click.Context, since: str, known: bool, fmt: str, store: str) -> None:
    """List rate limiters: their programs, decisions, use of the limit, the effect of a clock step, and the cost of
    observation.

    per_s and the counts are of all decisions. For a sampled program (sample_rate below 1) they are estimates from
    limiter_rate, with their accuracy in basis: exact, within N % (95 % confidence), at least, or as seen (not scaled).
    limit_use is the admitted share of the limit, for all places of the program that call the limiter (also_asked_by);
    above 100 % the limiter admitted more than its limit. The state is gone if the process has ended. -o json shows all
    columns. Go programs with a known limiter that cannot be observed are listed on stderr with the reason.
    """
    if ctx.invoked_subcommand is None:
        _listed(since, known, fmt, store)


command.add_command(limiters_replay.command)
command.add_command(limiters_try.command)
command.add_command(limiters_show.command)


def _listed(since: str, known: bool, fmt: str, store: str) -> None:
    from agent.cli.gaps import report_gaps
    from agent.cli.output import emit_rows, note

    if known:
        emit_rows(_known(), fmt, _KNOWN)
        return
    from agent.cli.limiters_list import seen_in
    from agent.store.sources import opened

    with opened(store, ["limiter", "limiter_decision", "limiter_rate", "probe_status", "loss"], since) as source:
        rows = seen_in(source)
        binaries = source.rows(_binaries())
        notes, gaps = source.notes, source.gaps()
    if fmt == "table":
        emit_rows(
            [_short(row) for row in rows], fmt, (*_SHOWN.values(), "limiter_id"), units=_UNITS, below="limiter_id"
        )
    else:
        emit_rows(rows, fmt, _COLUMNS, {"binaries": binaries, "gaps": gaps})
    report_gaps(gaps, notes, fmt)
    if fmt != "json":
        for one in binaries:
            if one["state"] in ("unavailable", "degraded"):
                note(f"{one['state']}: {one['reason']}" + (f" (try: {one['remedy']})" if one["remedy"] else ""))
    if not rows:
        note("no limiter decisions: widen --since, or see `tickscope probes`")
        click.get_current_context().exit(NO_ROWS)


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """The row as a screen shows it."""
    owner = [
        row["limiter_id"],
        *([f"pid {row['pid']}"] if row["pid"] is not None else []),
        *([row["basis"]] if row["basis"] != "exact" else []),
        *(["gone"] if row["state"] == "gone" else []),
    ]
    rate = None if row["per_s"] is None else float(f"{row['per_s']:.3g}")
    version = (
        row["version"]
        if row["version"] is None or len(row["version"]) <= _VERSION
        else row["version"][: _VERSION - 1] + "…"
    )
    return {
        **{short: row[name] for name, short in _SHOWN.items()},
        "per_s": rate,
        "version": version,
        "limiter_id": ", ".join(owner),
    }


def _known() -> list[dict[str, Any]]:
    from agent.limiters.catalogue import CATALOGUE

    return [
        {
            "library": one.library,
            "language": one.language,
            "clock": one.clock,
            "algorithm": one.algorithm,
            "on_step_back": step.back,
            "on_step_forward": step.forward,
            "versions": None if step.versions == ".*" else step.versions,
            "probed": one.seen is not None,
        }
        for one in CATALOGUE
        for step in one.steps
    ]
