"""``tickscope clock history``: the offset history as rows, on the terminal as a plot, and as a picture."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent.cli import options
from agent.errors import NO_ROWS, USAGE, AgentError, printable

if TYPE_CHECKING:
    from agent.cli.clock_plot import Course
    from agent.clock.history import History
    from agent.store.query import Session

_SEGMENT = ("boot_id", "t_ns", "wall_ns", "real_boot_ns", "err_ns", "step_ns", "via", "pid", "comm")


def histories(session: Session) -> dict[str, History]:
    """The offset history of each boot in the store, oldest boot first."""
    import numpy as np

    from agent.clock.history import History
    from agent.tables import TABLES

    names = ("t_ns", "real_mono_ns", "boot_mono_ns", "err_ns", "cut")
    found = session.run(f"SELECT boot_id, {', '.join(names)} FROM clock_offset WHERE real_mono_ns IS NOT NULL AND boot_mono_ns IS NOT NULL").rows
    out = {}
    for boot in session.boots:
        mine = [row[1:] for row in found if row[0] == boot]
        if mine:
            rows = TABLES["clock_offset"].empty(len(mine))
            for name, values in zip(names, zip(*mine, strict=True), strict=True):
                rows[name] = np.array([0 if v is None else v for v in values], np.int64)
            out[boot] = History.from_rows(rows)
    return out


@click.command("history")
@click.option("--since", metavar="TIME", help="Segments that hold after this time: 90s, 5m, 2h, 1d, ISO 8601, @SECONDS, boot+SECONDS.")
@click.option("--until", metavar="TIME", help="Segments that start before this time.")
@click.option("--plot", metavar="FILE", help="Draw it, instead of rows: FILE.svg, FILE.png (needs tickscope[plot]), or - for the terminal's plot.")
@options.common
def command(since: str | None, until: str | None, plot: str | None, fmt: str, store: str) -> None:
    """The offset history: from when on which offset of the wall clock held, and the step that began it, with who made it.

    On a terminal a plot comes before the rows (NO_COLOR is heeded); in a pipe there are only rows, unless --plot - asks for it.

    \b
    tickscope clock history --since 1d
    tickscope clock history --since 1d --plot clock.svg
    """
    from agent.cli.gaps import tell
    from agent.cli.output import emit_rows, note, quiet_pipe
    from agent.cli.picture import FORMATS
    from agent.store.query import Session

    if plot and plot != "-" and Path(plot).suffix.lower() not in FORMATS:
        raise AgentError(f"cannot draw {plot}", why=f"its name ends in none of {', '.join(FORMATS)}", exit_code=USAGE)
    course = None
    with Session(store, ["clock_offset", "clock_change", "loss"], since, until, whole=True) as session:
        actors = {(r[0], r[1]): r[2:] for r in session.run("SELECT boot_id, t_ns, via, pid, comm FROM clock_change").rows}
        known = histories(session)
        rows = [row for boot, one in known.items() for row in _segments(boot, one, actors, ended=boot != session.boots[-1])]
        where = session.window.overlaps("t_ns", "until_ns")
        if where and rows:
            values = ", ".join(f"({i}, '{r['boot_id']}', {r['t_ns']}, {r['until_ns']})" for i, r in enumerate(rows))
            kept = session.run(f"SELECT i FROM (VALUES {values}) v(i, boot_id, t_ns, until_ns) WHERE {' AND '.join(where)} ORDER BY i").rows
            rows = [rows[i] for (i,) in kept]
        gaps, notes = session.gaps(), session.notes
        if rows and (plot or (fmt == "table" and sys.stdout.isatty())):
            newest = [r for r in rows if r["boot_id"] == rows[-1]["boot_id"]]
            course = _course(session, known[newest[-1]["boot_id"]], newest)
            if plot and len(newest) < len(rows):
                note("note: the plot shows the newest boot; --until chooses an earlier one")
    tell(gaps, notes, "table" if plot else fmt)
    if course is not None and plot and plot != "-":
        from agent.cli.clock_plot import draw

        draw(course).write(Path(plot))
        note(f"wrote {plot}")
        return
    if course is not None:
        from agent.cli.clock_text import text

        with quiet_pipe():
            click.echo("\n".join(text(course, shutil.get_terminal_size((100, 40)).columns)) + "\n")
    if not plot:
        emit_rows(rows, fmt, _SEGMENT, {"gaps": gaps})
    if not rows:
        note("no offset history in that time")
        click.get_current_context().exit(NO_ROWS)
    if plot and course is None:
        raise AgentError("nothing to plot yet", why="there is one sample in that time", remedy="wait ten seconds, or choose a longer time")


def _course(session: Session, history: History, rows: list[dict[str, Any]]) -> Course | None:
    """What is drawn of one boot; None where there are not two samples in the window."""
    import numpy as np

    from agent.cli.clock_plot import Course, Step, rates
    from agent.columns import NULL_I64

    where = " AND ".join([f"boot_id = '{rows[-1]['boot_id']}'", *session.window.rows()])
    found = session.run(f"SELECT t_ns, mono_raw_ns, freq_ppb, host FROM clock_offset WHERE {where} ORDER BY t_ns").rows
    if len(found) < 2 or found[0][0] == found[-1][0]:
        return None
    t, raw, freq = (np.array([NULL_I64 if r[i] is None else r[i] for r in found], np.int64) for i in range(3))
    moved = np.array([r["real_boot_ns"] - rows[0]["real_boot_ns"] for r in rows], np.int64)
    steps = [Step(r["t_ns"], r["step_ns"], _who(r), r["wall_ns"]) for r in rows[1:] if r["step_ns"] and t[0] <= r["t_ns"] <= t[-1]]
    shown = [i for i, r in enumerate(rows) if r["t_ns"] <= t[-1]]
    new = np.flatnonzero((freq != NULL_I64) & np.append(True, np.diff(freq) != 0))
    return Course(found[-1][3] or "this host", int(t[0]), int(t[-1]), int(history.segments.real_boot_ns[-1]), np.array([rows[i]["t_ns"] for i in shown]),
                  moved[shown], np.array([rows[i]["err_ns"] for i in shown]), steps, *rates(t[raw != NULL_I64], raw[raw != NULL_I64]), t[new], freq[new] / 1e3)


def _who(row: dict[str, Any]) -> str:
    if not row["pid"]:
        return "by whom was not seen"
    return f"{printable(row['comm'] or '')} {row['pid']}" + (f" ({row['via']})" if row["via"] not in (None, "none") else "")


def _segments(boot: str, history: History, actors: dict[tuple[Any, ...], tuple[Any, ...]], *, ended: bool) -> list[dict[str, Any]]:
    """ended: a later boot has begun, so nothing of this one holds beyond its last sample."""
    s = history.segments
    starts, offsets, errs = s.start_ns.tolist(), s.real_boot_ns.tolist(), s.err_ns.tolist()
    ends = [*starts[1:], int(s.known_ns[-1]) + 1 if ended else 1 << 62]
    out = []
    for i, (start, offset, err, end) in enumerate(zip(starts, offsets, errs, ends, strict=True)):
        via, pid, comm = actors.get((boot, start), (None, None, None))
        out.append({"boot_id": boot, "t_ns": start, "wall_ns": start + offset, "real_boot_ns": offset, "err_ns": err, "until_ns": end,
                    "step_ns": offset - offsets[i - 1] if i else None, "via": via, "pid": pid, "comm": comm})  # fmt: skip
    return out
