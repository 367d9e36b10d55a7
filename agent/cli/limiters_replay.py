"""``tickscope limiters replay``: replays recorded decisions on another clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agent.cli import options
from agent.cli.limiters_declared import declared_by_flags
from agent.common.duration import parse_ns
from agent.errors import NO_ROWS, USAGE, AgentError

if TYPE_CHECKING:
    from agent.ask.row_source import RowSource
    from agent.limiters.model_settings import Declared
    from agent.limiters.replay.jump import Decisions

_JUMPED = (
    "limiter_id",
    "jump_t_ns",
    "size_ns",
    "decisions",
    "admitted_program",
    "admitted_true",
    "over_admitted",
    "wrongly_refused",
    "excess",
    "windows_overlapped",
    "windows_skipped",
    "quality",
    "reason",
    "algorithm",
    "library",
    "library_version",
    "pid",
    "comm",
    "member",
    "clock",
    "refused_program",
    "refused_true",
    "over_admitted_most",
    "wrongly_refused_most",
    "excess_from_ns",
    "excess_to_ns",
    "from_ns",
    "until_ns",
    "boot_id",
    "wall_ns",
)
_SPLIT = (
    "limiter_id",
    "window_ns",
    "skew_ns",
    "limit",
    "decisions",
    "in_other_window",
    "admitted_same",
    "admitted_apart",
    "over_admitted",
    "wrongly_refused",
    "most_same",
    "most_apart",
    "replicas",
    "algorithm",
    "reason",
)
_MOST_NS = 10 * 366 * 86_400 * 10**9


class Signed(click.ParamType):  # type: ignore[type-arg]
    """``-500ms``, ``2s`` or ``+1h``, as ns; not 0."""

    name = "duration"

    def __init__(self, least: int = -_MOST_NS) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        try:
            ns = parse_ns(text.lstrip("+-")) * (-1 if text.startswith("-") else 1)
        except ValueError:
            ns = 0
        if not self._least <= ns <= _MOST_NS or ns == 0 or text[1:2] in ("+", "-"):
            self.fail(
                f"{text!r} is not a duration{' above 0' if self._least > 0 else ''}: use"
                f" {'100ms, 2s' if self._least > 0 else '-500ms, 2s'} or 1h",
                param,
                ctx,
            )
        return ns


@click.command("replay")
@click.option(
    "--jump",
    metavar="ID",
    help=(
        "A jump that happened: last, all, a finding's id or the beginning of one, or a time (boot+SECONDS, ISO 8601)."
    ),
)
@click.option("--what-if", type=Signed(), metavar="DURATION", help="A hypothetical jump: -500ms, 2s, 1h.")
@click.option("--window", type=Signed(1), metavar="D", help="With --skew: window of the limiters.")
@click.option(
    "--skew",
    type=Signed(),
    metavar="D",
    help="Assume that two replicas share each limiter and that their clocks differ by D.",
)
@click.option("--at", metavar="TIME", help="With --what-if: time of the jump [default: the middle of the rows].")
@options.since("Only decisions from this time on [default: 10 minutes before the jump, else the last 5 minutes].")
@click.option("--until", metavar="TIME", help="Only decisions up to this time.")
@click.option("--limiter", "pattern", metavar="ID", help="Only limiters with this id (* and ? are wildcards).")
@click.option(
    "--model", metavar="NAME", help="Replay with this model instead of the library's: see docs/limiters-reference.md."
)
@click.option("--limit", "count", type=click.FloatRange(min=1), metavar="N", help="Units per window.")
@click.option("--slots", type=click.IntRange(1, 10_000), metavar="N", help="Slots per window.")
@click.option(
    "--config",
    "config",
    metavar="F",
    envvar="TICKSCOPE_CONFIG",
    help="Settings file; limiter_models and limiter_functions are used.",
)
@options.reading
def command(
    jump: str | None,
    what_if: int | None,
    window: int | None,
    skew: int | None,
    at: str | None,
    since: str | None,
    until: str | None,
    pattern: str | None,
    model: str | None,
    count: float | None,
    slots: int | None,
    config: str | None,
    fmt: str,
    store: str,
) -> None:
    """Count the requests that a clock jump admitted or refused wrongly.

    The recorded decisions are replayed with the limiter's algorithm on two clocks: the program's clock, and true time
    (without the jump). over_admitted counts the requests that only the program's clock admits, wrongly_refused those
    that only true time admits. excess is the largest number of units admitted in excess of true time (negative: too
    few). quality says how exact the counts are.

    \b
    tickscope limiters replay --jump last
    tickscope limiters replay --what-if -500ms --limiter 'checkout*'
    tickscope limiters replay --window 100ms --skew 63ms -o json
    """
    given_flags = [
        name for name, given in (("--jump", jump), ("--what-if", what_if), ("--skew", skew)) if given is not None
    ]
    if len(given_flags) != 1:
        raise AgentError(
            f"{' and '.join(given_flags)} cannot be used together" if given_flags else "nothing to replay is named",
            remedy="tickscope limiters replay --jump last, --what-if -500ms, or --window 100ms --skew 63ms",
            exit_code=USAGE,
        )
    if (window is None) != (skew is None):
        raise AgentError(
            "--window and --skew must be used together", remedy="--window 100ms --skew 63ms", exit_code=USAGE
        )
    if at is not None and what_if is None:
        raise AgentError("--at needs --what-if", exit_code=USAGE)
    declarations = declared_by_flags(config, model, count, slots, window)

    from agent.cli import limiters_screen
    from agent.cli.gaps import report_gaps
    from agent.cli.output import emit_rows, note
    from agent.store.sources import opened

    start = since if since is not None or jump else "5m"
    with opened(
        store, ["limiter_decision", "clock_change", "finding", "loss"], None if jump else start, until, whole=bool(jump)
    ) as source:
        if jump is not None:
            rows, left_out = _jumps(source, jump, since, until, pattern, declarations)
        elif what_if is not None:
            rows, left_out = _what_if(source, what_if, at, pattern, declarations)
        else:
            assert window is not None
            assert skew is not None
            rows, left_out = _skewed(source, window, skew, pattern, declarations), 0
        gaps, notes = source.gaps(), source.notes
    if fmt == "table":
        shown, columns = limiters_screen.split(rows) if skew is not None else limiters_screen.jumped(rows)
        emit_rows(shown, fmt, columns, below=limiters_screen.LIMITER_COLUMN)
    else:
        emit_rows(rows, fmt, _SPLIT if skew is not None else _JUMPED, {"gaps": gaps})
    report_gaps(gaps if not jump else [], notes, fmt)
    if left_out > 0:
        note(f"{left_out} limiters with fewer decisions are not shown: choose with --limiter")
    if not rows:
        note("no limiter decisions there: widen --since" + (", or say --limit" if skew is not None else ""))
        click.get_current_context().exit(NO_ROWS)


def _decisions(
    source: RowSource, boot_id: str, from_ns: int, to_ns: int, pattern: str | None, declarations: tuple[Declared, ...]
) -> Decisions:
    """Rows of one boot between two instants, CLOCK_BOOTTIME."""
    from fnmatch import fnmatchcase

    import numpy as np

    from agent.ask.question import Question, Where
    from agent.ask.row_source import gap_bounds
    from agent.limiters.replay.jump import COLUMNS, Decisions

    where = (Where("boot_id", "=", boot_id), Where("t_ns", ">=", from_ns), Where("t_ns", "<=", to_ns))
    rows = source.table(Question("limiter_decision", COLUMNS, where, within=False, order=("t_ns",)))
    if pattern is not None:
        names = {
            name: fnmatchcase(name.decode("utf-8", "replace"), pattern) for name in set(rows["limiter_id"].tolist())
        }
        rows = rows[np.array([names[name] for name in rows["limiter_id"].tolist()], np.bool_)]
    gaps = [gap_bounds(gap) for gap in source.gaps() if gap["boot_id"] == boot_id and gap["stage"] != "export"]
    history = source.history(boot_id)
    watched = int(history.segments.start_ns[0]) if len(history) else from_ns
    return Decisions(rows, max(from_ns, watched), gaps, declarations)


def _jumps(
    source: RowSource,
    which: str,
    since: str | None,
    until: str | None,
    pattern: str | None,
    declarations: tuple[Declared, ...],
) -> tuple[list[dict[str, Any]], int]:
    from agent.ask.row_source import offset_at
    from agent.cli.limiters_jumps import REACH_NS, chosen
    from agent.limiters.replay.jump import Jump

    rows: list[dict[str, Any]] = []
    left_out = 0
    for boot_id, jumps, every in chosen(source, which):
        ends = [_instant(source, text, boot_id) for text in (since, until)]
        first = ends[0] if ends[0] is not None else jumps[0]["t_ns"] - REACH_NS
        last = ends[1] if ends[1] is not None else jumps[-1]["t_ns"] + abs(jumps[-1]["size_ns"]) + REACH_NS
        decisions = _decisions(source, boot_id, first, last, pattern, declarations)
        if not len(decisions.rows):
            continue
        for one in jumps:
            t_ns = one["t_ns"]
            offset_ns = offset_at(source, boot_id, t_ns - 1)
            following = next((other - 1 for other in every if other > t_ns), last)
            jump = Jump(
                t_ns,
                one["size_ns"],
                0 if offset_ns is None else t_ns + offset_ns,
                min(following, int(decisions.rows["t_ns"][-1])),
            )
            rows += [
                {**found.as_row(), "boot_id": boot_id, "wall_ns": jump.wall_ns or None}
                for found in decisions.around(jump)
            ]
        left_out = max(left_out, decisions.left_out)
    return rows, left_out


def _instant(source: RowSource, text: str | None, boot_id: str) -> int | None:
    """Parses a time as CLOCK_BOOTTIME of a boot. Raises AgentError (exit code 2)."""
    import numpy as np

    if text is None:
        return None
    bound = source.bound(text)
    if bound.boot_id == boot_id:
        return bound.t_ns
    history = source.history(boot_id)
    if bound.wall_ns is None or not len(history):
        raise AgentError(f"{text} is not a time of that boot", exit_code=USAGE)
    return int(history.to_boot(np.array([bound.wall_ns], np.int64)).ns[0])


def _window(source: RowSource, pattern: str | None) -> tuple[str, int, int]:
    """(boot, from, to) of the newest boot's rows of these limiters in the source's window, CLOCK_BOOTTIME. Raises
    AgentError (exit code 3) if there are none.
    """
    from fnmatch import fnmatchcase

    from agent.ask.question import GroupValue, Question

    spans = source.rows(
        Question(
            "limiter_decision",
            group=("boot_id", "limiter_id"),
            values=(GroupValue("first", "min", "t_ns"), GroupValue("last", "max", "t_ns")),
            order=("boot_id",),
        )
    )
    spans = [one for one in spans if pattern is None or fnmatchcase(one["limiter_id"] or "", pattern)]
    if not spans:
        raise AgentError(
            f"no limiter decisions{f' of {pattern}' if pattern is not None else ''} in that time",
            remedy="widen --since, or see `tickscope limiters` and `tickscope probes`",
            exit_code=NO_ROWS,
        )
    boot = spans[-1]["boot_id"]
    in_boot = [one for one in spans if one["boot_id"] == boot]
    return boot, min(one["first"] for one in in_boot), max(one["last"] for one in in_boot)


def _what_if(
    source: RowSource, size_ns: int, at: str | None, pattern: str | None, declarations: tuple[Declared, ...]
) -> tuple[list[dict[str, Any]], int]:
    from agent.ask.row_source import offset_at
    from agent.cli.limiters_jumps import steps
    from agent.limiters.replay.jump import Jump

    boot_id, first, last = _window(source, pattern)
    given = _instant(source, at, boot_id)
    t_ns = (first + last) // 2 if given is None else given
    if not first <= t_ns <= last:
        raise AgentError(
            f"--at {at} is outside the time of the decisions",
            why=f"they are from boot+{first / 1e9:.3f} to boot+{last / 1e9:.3f}",
            exit_code=USAGE,
        )
    real = [one["t_ns"] for one in steps(source) if one["boot_id"] == boot_id]
    first = max([first, *(t for t in real if t <= t_ns)])  # one jump at a time
    last = min([last, *(t - 1 for t in real if t > t_ns)])
    decisions = _decisions(source, boot_id, first, last, pattern, declarations)
    offset_ns = offset_at(source, boot_id, t_ns)
    jump = Jump(t_ns, size_ns, 0 if offset_ns is None else t_ns + offset_ns, last, hypothetical=True)
    found = decisions.around(jump, reach_ns=last - t_ns)
    return [{**one.as_row(), "boot_id": boot_id, "wall_ns": jump.wall_ns or None} for one in found], decisions.left_out


def _skewed(
    source: RowSource, window_ns: int, skew_ns: int, pattern: str | None, declarations: tuple[Declared, ...]
) -> list[dict[str, Any]]:
    from agent.ask.row_source import offset_at
    from agent.cli.limiters_jumps import steps
    from agent.limiters.replay.skew import split

    boot_id, first, last = _window(source, pattern)
    # Only decisions after the last jump: windows of a clock that jumped are not windows of true time.
    first = max([first, *(one["t_ns"] for one in steps(source) if one["boot_id"] == boot_id and one["t_ns"] <= last)])
    decisions = _decisions(source, boot_id, first, last, pattern, declarations)
    return [one.as_row() for one in split(decisions, window_ns, skew_ns, offset_at(source, boot_id, first) or 0)]
