"""``tickscope clock history``: the offset history as rows, and on the terminal as a plot."""

from __future__ import annotations

import shutil
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from agent.cli import options
from agent.common.printable import printable
from agent.errors import NO_ROWS, AgentError

if TYPE_CHECKING:
    import numpy as np

    from agent.ask.row_source import RowSource
    from agent.cli.clock_series import ClockSeries
    from agent.clock.history import History

_WATCHED_NS = (
    30 * 10**9
)  # a running agent stores a sample each 10 s (agent/clock/clock_source.py, ROW_NS), and at each change
#: Default number of segments in a table.
_TABLE_ROWS = 1_000
#: Up to this number of segments, their actors are queried one by one.
_LISTED = 100
_OPEN_NS = 1 << 62
_SEGMENT = ("boot_id", "t_ns", "wall_ns", "real_boot_ns", "err_ns", "step_ns", "via", "pid", "comm")


def histories(source: RowSource) -> dict[str, History]:
    """The offset history of each boot in the store that has one, the oldest boot first."""
    found = {boot: source.history(boot) for boot in source.boots}
    return {boot: one for boot, one in found.items() if len(one)}


@click.command("history")
@options.since("Segments that end after this time: 90s, 2h, 22:13, yesterday, ISO 8601, @SECONDS, boot+SECONDS.")
@click.option("--until", metavar="TIME", help="Segments that start before this time.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help=f"At most N segments: the newest. By default {_TABLE_ROWS:,} in a table, else all.",
)
@click.option("--plot", is_flag=True, help="Print only the plot.")
@options.reading
def command(since: str | None, until: str | None, limit: int | None, plot: bool, fmt: str, store: str) -> None:
    """List the segments of the offset history: when each began, the offset of the wall clock, and the step that began
    it, with its process.

    On a terminal a plot precedes the rows (NO_COLOR turns its colours off). In a pipe there are only rows, unless
    --plot is given.

    \b
    tickscope clock history --since 1d
    tickscope clock history --since 1d --plot
    tickscope clock history --limit 20
    """
    from agent.cli.gaps import report_gaps
    from agent.cli.output import emit_rows, note, quiet_pipe
    from agent.store.sources import opened

    series: ClockSeries | None = None
    rows: list[dict[str, Any]] = []
    with opened(store, ["clock_offset", "clock_change", "loss"], since, until, whole=True) as source:
        known = histories(source)
        chosen = {boot: at for boot, one in known.items() if len(at := _within(source, boot, one))}
        total = sum(map(len, chosen.values()))
        if not plot:
            most = limit or (_TABLE_ROWS if fmt == "table" else total)
            left = most
            for boot in reversed(chosen):
                rows[:0] = _rows(source, boot, known[boot], chosen[boot][-left:]) if left > 0 else []
                left = most - len(rows)
        gaps, notes = source.gaps(), source.notes
        if chosen and (plot or (fmt == "table" and sys.stdout.isatty())):
            newest = list(chosen)[-1]
            series = _series(source, newest, known[newest], chosen[newest])
            if plot and len(chosen) > 1:
                note("note: the plot shows the newest boot; --until chooses an earlier one")
    report_gaps(gaps, notes, "table" if plot else fmt)
    if series is not None:
        from agent.cli.clock_text import text

        with quiet_pipe():
            click.echo("\n".join(text(series, shutil.get_terminal_size((100, 40)).columns)) + "\n")
    if not plot:
        emit_rows(rows, fmt, _SEGMENT, {"gaps": gaps}, units={"step_ns": "ns"})
        if len(rows) < total:
            note(
                f"note: the newest {len(rows):,} of {total:,} segments; --limit {total} shows all, --since and --until"
                " others"
            )
    if not total:
        note("no offset history in that time")
        click.get_current_context().exit(NO_ROWS)
    if plot and series is None:
        raise AgentError(
            "nothing to plot yet",
            why="there is one sample in that time",
            remedy="wait ten seconds, or choose a longer time",
        )


def _ends(source: RowSource, boot: str, history: History) -> np.ndarray:
    """The end of each segment, CLOCK_BOOTTIME ns. The last segment ends with the boot's last sample if a later boot
    exists.
    """
    import numpy as np

    s = history.segments
    return np.append(s.start_ns[1:], _OPEN_NS if boot == source.boots[-1] else s.known_ns[-1] + 1)


def _within(source: RowSource, boot: str, history: History) -> np.ndarray:
    """Indices of the segments that overlap the source's window."""
    import numpy as np

    since, until, start = source.window.since, source.window.until, history.segments.start_ns
    wall = partial(source.wall, boot)
    kept = np.ones(len(start), bool)
    if since is not None:
        kept &= since.compare(np.greater_equal, boot, _ends(source, boot, history), wall)
    if until is not None:
        kept &= until.compare(np.less, boot, start, wall)
    return np.flatnonzero(kept)


def _series(source: RowSource, boot: str, history: History, at: np.ndarray) -> ClockSeries | None:
    """The plot data of segments ``at`` of one boot; None with fewer than two samples in the window."""
    import numpy as np

    from agent.ask.question import GroupValue, Question, Where
    from agent.cli.clock_series import NAMED, ClockSeries, WallStep, furthest, unwatched

    in_boot = Where("boot_id", "=", boot)
    found = source.integers(Question("clock_offset", ("t_ns",), (in_boot,), order=("t_ns",)))
    t = found["t_ns"]
    if len(t) < 2 or t[0] == t[-1]:
        return None
    s = history.segments
    hosts = Question("clock_offset", where=(in_boot,), within=False, values=(GroupValue("host", "max", "host"),))
    host = source.rows(hosts)[0]["host"]
    shown = at[s.start_ns[at] <= t[-1]]
    jumped = shown[1:][(s.start_ns[shown[1:]] >= t[0])]
    size = s.real_boot_ns[jumped] - s.real_boot_ns[jumped - 1]
    jumped, size = jumped[size != 0], size[size != 0]
    named = np.argsort(-np.abs(size), kind="stable")[:NAMED]
    actors = {row["t_ns"]: actor_of(row) for row in _rows(source, boot, history, np.sort(jumped[named]))}
    drawn = np.union1d(furthest(s.start_ns[jumped], size), named)
    steps = [
        WallStep(start, by, actors.get(start, ""), start + offset)
        for start, by, offset in zip(
            s.start_ns[jumped[drawn]].tolist(),
            size[drawn].tolist(),
            s.real_boot_ns[jumped[drawn]].tolist(),
            strict=True,
        )
    ]
    moved = s.real_boot_ns[shown] - s.real_boot_ns[shown[0]]
    few = furthest(s.start_ns[shown], moved, s.err_ns[shown])
    return ClockSeries(
        host or "this host",
        int(t[0]),
        int(t[-1]),
        int(s.real_boot_ns[-1]),
        s.start_ns[shown[few]],
        moved[few],
        s.err_ns[shown[few]],
        steps,
        len(jumped),
        unwatched(t, _WATCHED_NS),
    )


def actor_of(row: dict[str, Any]) -> str:
    if not row["pid"]:
        return "unknown process"
    return f"{printable(row['comm'] or '')} {row['pid']}" + (
        f" ({row['via']})" if row["via"] not in (None, "none") else ""
    )


def _rows(source: RowSource, boot: str, history: History, at: np.ndarray) -> list[dict[str, Any]]:
    """The segments ``at``, each with the process that began it."""
    import numpy as np

    from agent.ask.question import Question, Where

    s, starts = history.segments, history.segments.start_ns[at].tolist()
    which = (
        (Where("t_ns", "in", tuple(starts)),)
        if len(at) <= _LISTED
        else (Where("t_ns", ">=", starts[0]), Where("t_ns", "<=", starts[-1]))
    )
    changes = source.rows(
        Question("clock_change", ("t_ns", "via", "pid", "comm"), (Where("boot_id", "=", boot), *which), within=False)
    )
    actors = {row["t_ns"]: (row["via"], row["pid"], row["comm"]) for row in changes}
    before = s.real_boot_ns[np.maximum(at - 1, 0)].tolist()
    out = []
    for i, start, offset, err, earlier in zip(
        at.tolist(), starts, s.real_boot_ns[at].tolist(), s.err_ns[at].tolist(), before, strict=True
    ):
        via, pid, comm = actors.get(start, (None, None, None))
        out.append(
            {
                "boot_id": boot,
                "t_ns": start,
                "wall_ns": start + offset,
                "real_boot_ns": offset,
                "err_ns": err,
                "step_ns": offset - earlier if i else None,
                "via": via,
                "pid": pid,
                "comm": comm,
            }
        )
    return out
