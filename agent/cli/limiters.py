"""tickscope limiters: the rate limiters that took decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agent.cli import limiters_replay, limiters_try, options
from agent.errors import NO_ROWS

if TYPE_CHECKING:
    from agent.ask.question import Question, Where
    from agent.ask.source import RowSource

_COLUMNS = (
    "limiter_id",
    "library",
    "library_version",
    "source",
    "pid",
    "comm",
    "decisions",
    "allowed",
    "refused",
    "delayed",
    "cancelled",
    "errors",
    "told",
    "allowed_low",
    "allowed_high",
    "refused_low",
    "refused_high",
    "limit_per_s",
    "unlimited",
    "burst",
    "step_immune",
    "on_step_back",
    "on_step_forward",
    "sample_rate",
    "last_ns",
)
_KNOWN = ("library", "language", "clock", "algorithm", "on_step_back", "on_step_forward", "versions", "probed")
_LIMITER = ("limiter_id", "library", "library_version", "source", "pid")
_RESULTS = {
    "allowed": "allowed",
    "refused": "refused",
    "delayed": "delayed",
    "cancelled": "cancelled",
    "errors": "error",
}


def _decisions(*where: Where) -> Question:
    """Each limiter in each process: its decisions by result, and what was seen of it last."""
    from agent.ask.question import GroupValue, Question, Where

    results = (GroupValue(name, "count", where=Where("result", "=", result)) for name, result in _RESULTS.items())
    return Question("limiter_decision", where=where, group=("boot_id", *_LIMITER, "proc_start_ns"), order=("-decisions", "limiter_id", "pid"), values=(
        GroupValue("comm", "last", "comm"), GroupValue("decisions", "count"), *results, GroupValue("limit_per_s", "last", "limit_per_s"),
        GroupValue("unlimited", "last", "unlimited"), GroupValue("burst", "last", "burst"), GroupValue("step_immune", "all", "step_immune"),
        GroupValue("sample_rate", "min", "sample_rate"), GroupValue("last_ns", "max", "t_ns")))  # fmt: skip


def _totals(source: RowSource) -> list[dict[str, Any]]:
    """Of those that were watched a part of the time only, all of their decisions in the place of those that were seen."""
    from agent.ask.question import Question, Where
    from agent.cli.limiters_totals import COLUMNS, KEY, Total, added, told

    rows = source.rows(_decisions())
    rates = added(source.rows(Question("limiter_rate", COLUMNS)))
    always = (
        {tuple(row[n] for n in KEY): row for row in source.rows(_decisions(Where("sample_rate", "=", 1.0)))}
        if rates
        else {}
    )
    for row in rows:
        key = tuple(row[name] for name in KEY)
        if key not in rates:
            sampled = row["sample_rate"] is not None and row["sample_rate"] < 1
            row.update({"told": "as seen" if sampled else "exact"})
            continue
        seen = always.pop(key, dict.fromkeys((*_RESULTS, "decisions"), 0))
        allowed, refused = (
            Total(seen[n], seen[n], seen[n]) + more for n, more in zip(("allowed", "refused"), rates[key], strict=True)
        )
        row.update({n: seen[n] for n in _RESULTS}, allowed=allowed.n, refused=refused.n)
        row.update(decisions=sum(row[n] for n in _RESULTS), told=told(allowed, refused))
        for name, total in (("allowed", allowed), ("refused", refused)):
            row[f"{name}_low"], row[f"{name}_high"] = total.least, total.most
    return sorted(rows, key=lambda row: -row["decisions"])


def _binaries() -> Question:
    """The programs that contain a known limiter, the one of which something was said last at the end."""
    from agent.ask.question import GroupValue, Question, Where

    return Question("probe_status", ("probe", "state", "reason", "remedy"), (Where("probe", "starts", "limiter:"),), group=("probe", "reason"), values=(
        GroupValue("state", "last", "state"), GroupValue("remedy", "last", "remedy"), GroupValue("last_ns", "max", "t_ns")), order=("last_ns",))  # fmt: skip


@click.group("limiters", cls=options.VerbGroup, invoke_without_command=True, subcommand_metavar="[VERB] [ARGS]...")
@click.option(
    "--since",
    metavar="TIME",
    default="5m",
    show_default=True,
    help="Decisions from this time on: 90s, 5m, 2h, ISO 8601, or boot+SECONDS.",
)
@click.option(
    "--known",
    is_flag=True,
    help="List the limiter libraries that are known and what a clock step does to them. Needs no store.",
)
@options.reading
@click.pass_context
def command(ctx: click.Context, since: str, known: bool, fmt: str, store: str) -> None:
    """Rate limiters: who uses them, their decisions, limits, and what a clock step would do to each.

    A limiter that decides too often to be watched all of the time has sample_rate below 1. Its counts are of all decisions all the same,
    by limiter_rate; told says how good they are: exact, within so much (95 times in 100), at least, or as seen. On stderr: Go programs that contain
    a known limiter and cannot be watched, with the reason.
    """
    if ctx.invoked_subcommand is None:
        _listed(since, known, fmt, store)


command.add_command(limiters_replay.command)
command.add_command(limiters_try.command)


def _listed(since: str, known: bool, fmt: str, store: str) -> None:
    from agent.cli.gaps import tell
    from agent.cli.output import emit_rows, note

    if known:
        emit_rows(_known(), fmt, _KNOWN)
        return
    from agent.store.sources import opened

    with opened(store, ["limiter_decision", "limiter_rate", "probe_status", "loss"], since) as source:
        rows = [_judged(row) for row in _totals(source)]
        binaries = source.rows(_binaries())
        notes, gaps = source.notes, source.gaps()
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
