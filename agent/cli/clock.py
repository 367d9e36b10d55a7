"""``tickscope clock``: this host's clocks now, their history, live steps, and conversion of times through the history."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING, Any

import click

from agent.cli import options
from agent.errors import INTERRUPTED, NO_ROWS, UNREACHABLE, AgentError

if TYPE_CHECKING:
    from agent.clock.history import History
    from agent.store.query import Session

_CHANGES = ("t_ns", "wall_ns", "kind", "size_ns", "err_ns", "freq_after_ppb", "via", "pid", "comm", "ret")
_NOTICE = ("t_ns", "kind", "size_ns", "err_ns", "real_mono_before_ns", "real_mono_after_ns", "pid", "comm")
_SEGMENT = ("boot_id", "t_ns", "wall_ns", "real_boot_ns", "err_ns", "step_ns", "via", "pid", "comm")
_CONVERTED = ("boot_id", "t_ns", "wall_ns", "err_ns", "state", "alt_ns")


@click.group("clock", invoke_without_command=True)
@options.common
@click.pass_context
def command(ctx: click.Context, fmt: str, store: str) -> None:
    """The clocks now: offsets, drift against the raw oscillator, synchronisation, and the last things that moved a clock.

    Offsets are read on the spot; drift and changes come from the running agent and its store, and are left out without them.

    \b
    tickscope clock history --since 1d
    tickscope clock convert boot+3600
    """
    if ctx.invoked_subcommand is None:
        _now(fmt, store)


def _now(fmt: str, store: str) -> None:
    from agent.cli.cells import cell
    from agent.cli.output import emit_rows, note
    from agent.cli.status import document
    from agent.clock import sample, timex

    state = timex.read()
    row: dict[str, Any] = sample.read()._asdict() | {
        "freq_ppb": state.freq_ppb, "synchronised": not state.status & timex.STA_UNSYNC, "maxerror_us": state.maxerror_us, "tai_s": state.tai_s,
        "drift_ppb": None, "segments": None, "watch": None,
    }  # fmt: skip
    changes: list[dict[str, Any]] = []
    try:
        told = document()["clock"]
        row.update({k: told.get(k) for k in ("drift_ppb", "segments", "watch")})
    except AgentError as error:
        note(f"note: {error.what}: no drift")
    try:
        changes = _changes(store)
    except AgentError as error:
        note(f"note: {error.what}: no changes")
    if fmt == "table":
        for name, value in row.items():
            click.echo(f"{name:15}{cell(name, value)}")
        if changes:
            click.echo("\nlast changes")
            emit_rows(changes, fmt, _CHANGES)
    else:
        emit_rows([row], fmt, extra={"changes": changes})


def _changes(store: str) -> list[dict[str, Any]]:
    from agent.store.query import Session

    with Session(store, ["clock_change"]) as session:
        columns = ", ".join(_CHANGES)
        newest = ", ".join(f"{key} DESC" for key in session.order().rsplit(", ", 1))
        return session.run(f"SELECT {columns} FROM clock_change ORDER BY {newest} LIMIT 10").dicts()[::-1]


def _histories(session: Session) -> dict[str, History]:
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


@command.command("history")
@click.option("--since", metavar="TIME", help="Segments that hold after this time: 90s, 5m, 2h, 1d, ISO 8601, boot+SECONDS.")
@click.option("--until", metavar="TIME", help="Segments that start before this time.")
@options.common
def history(since: str | None, until: str | None, fmt: str, store: str) -> None:
    """The offset history: from when on which offset of the wall clock held, and the step that began it, with who made it."""
    from agent.cli.output import emit_rows, note
    from agent.store.query import Session

    with Session(store, ["clock_offset", "clock_change"], since, until) as session:
        actors = {(r[0], r[1]): r[2:] for r in session.run("SELECT boot_id, t_ns, via, pid, comm FROM clock_change").rows}
        rows = [row for boot, one in _histories(session).items() for row in _segments(boot, one, actors)]
        where = session.window.overlaps("t_ns", "until_ns")
        if where and rows:
            values = ", ".join(f"({i}, '{r['boot_id']}', {r['t_ns']}, {r['until_ns']})" for i, r in enumerate(rows))
            kept = session.run(f"SELECT i FROM (VALUES {values}) v(i, boot_id, t_ns, until_ns) WHERE {' AND '.join(where)} ORDER BY i").rows
            rows = [rows[i] for (i,) in kept]
    emit_rows(rows, fmt, _SEGMENT)
    if not rows:
        note("no offset history in that time")
        click.get_current_context().exit(NO_ROWS)


def _segments(boot: str, history: History, actors: dict[tuple[Any, ...], tuple[Any, ...]]) -> list[dict[str, Any]]:
    s = history.segments
    starts, offsets, errs = s.start_ns.tolist(), s.real_boot_ns.tolist(), s.err_ns.tolist()
    ends = [*starts[1:], 1 << 62]
    out = []
    for i, (start, offset, err, end) in enumerate(zip(starts, offsets, errs, ends, strict=True)):
        via, pid, comm = actors.get((boot, start), (None, None, None))
        out.append({"boot_id": boot, "t_ns": start, "wall_ns": start + offset, "real_boot_ns": offset, "err_ns": err, "until_ns": end,
                    "step_ns": offset - offsets[i - 1] if i else None, "via": via, "pid": pid, "comm": comm})  # fmt: skip
    return out


@command.command("watch")
@click.option("-o", "--output", "fmt", type=click.Choice(["table", "json", "ndjson", "csv"]), default="table", show_default=True,
              help="Output format (json is ndjson: a stream has no end).")  # fmt: skip
def watch(fmt: str) -> None:
    """Every step of the wall clock as it happens, one a line, until interrupted (exit status 130)."""
    from agent.cli.output import emit_stream, quiet_pipe
    from agent.cli.status import run_dir

    path = os.path.join(run_dir(), "notices.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as notices:
        try:
            notices.connect(path)
        except OSError as error:
            raise AgentError(f"no notices at {path}", why=str(error.strerror), remedy="sudo tickscope run", exit_code=UNREACHABLE) from error
        try:
            with quiet_pipe(), notices.makefile("rb") as lines:
                for line in lines:
                    notice = json.loads(line)
                    emit_stream([{**notice, **(notice.get("actor") or {})}], fmt, _NOTICE)
        except KeyboardInterrupt:
            click.get_current_context().exit(INTERRUPTED)
    raise AgentError("the agent has ended", exit_code=UNREACHABLE)


@command.command("convert")
@click.argument("time")
@options.common
def convert(time: str, fmt: str, store: str) -> None:
    """TIME through the offset history: boot+SECONDS to wall time; an ISO time, or 5m ago and alike, to CLOCK_BOOTTIME.

    `state` is ambiguous where that wall time occurred twice, around a backward step (then `alt_ns` is the other answer), and skipped where a
    forward step left it out (then t_ns is the step).
    """
    import numpy as np

    from agent.cli.output import emit_rows, note
    from agent.columns import NULL_I64
    from agent.store.query import Session
    from agent.store.window import parse
    from agent.tables import DERIVED

    states = next(c for c in DERIVED if c.name == "wall_state").names
    rows = []
    with Session(store, ["clock_offset"]) as session:
        bound = parse(time, session.boots)
        for boot, one in _histories(session).items():
            to_wall = bound.boot_id is not None and bound.wall_ns is None
            if to_wall and boot != bound.boot_id:
                continue
            given = bound.t_ns if to_wall else bound.wall_ns
            got = (one.to_wall if to_wall else one.to_boot)(np.array([given], np.int64))
            err, alt = (None if v == NULL_I64 else v for v in (int(got.err_ns[0]), int(got.alt_ns[0])))
            answer = int(got.ns[0])
            if to_wall or (err is not None and (boot == session.boots[-1] or answer <= int(one.segments.known_ns[-1]))):
                rows.append({"boot_id": boot, "t_ns": given if to_wall else answer, "wall_ns": answer if to_wall else given,
                             "err_ns": err, "state": states[int(got.state[0])], "alt_ns": alt})  # fmt: skip
    emit_rows(rows, fmt, _CONVERTED)
    if not rows:
        note("the offset history does not reach that time")
        click.get_current_context().exit(NO_ROWS)
