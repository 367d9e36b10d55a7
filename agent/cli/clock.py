"""``tickscope clock``: this host's clocks now. Its subcommands are in the files clock_*.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from agent.cli import clock_convert, clock_daemons, clock_history, clock_watch, clock_what_if, options
from agent.errors import AgentError

if TYPE_CHECKING:
    from agent.ask.row_source import RowSource

_CHANGES = ("t_ns", "wall_ns", "kind", "size_ns", "err_ns", "freq_after_ppb", "via", "pid", "comm", "ret")
_JSON_ONLY = ("drift_ppb", "segments", "watch")
#: Tables that ``changes_in`` and ``clock_daemons.rows`` ask.
TABLES_OF = ("clock_change", *clock_daemons.TABLES_OF)
#: From this topic of ``words_of`` on there are plain readings.
REAL_MONO = "real - mono"
_LEAP = ("none announced", "a second will be inserted", "a second will be deleted", "unknown")


@click.group("clock", cls=options.VerbGroup, invoke_without_command=True, subcommand_metavar="[VERB] [ARGS]...")
@options.reading
@click.pass_context
def command(ctx: click.Context, fmt: str, store: str) -> None:
    """Show the clocks now: whether they are synchronised, offset, frequency, drift against the raw oscillator, the
    reports of the time daemons, and the last jump with the process that made it.

    Offsets come from the kernel. Drift, daemons, jumps and pending notices come from the running agent and its store,
    and are missing without them.

    \b
    tickscope clock history --since 1d
    tickscope clock convert boot+3600
    tickscope clock what-if -- -500ms
    """
    if ctx.invoked_subcommand is None:
        _now(fmt, store)


for _each in (clock_history.command, clock_watch.command, clock_convert.command, clock_what_if.command):
    command.add_command(_each)


def of_kernel() -> dict[str, Any]:
    """What the kernel says of the clocks now. Columns that the agent or its store knows are null."""
    from agent import doctor
    from agent.clock import machine, sample, timex

    state = timex.read()
    by = [] if state.synchronised else doctor.synchronised_daemons()
    return sample.read()._asdict() | {
        "freq_ppb": state.freq_ppb,
        "synchronised": state.synchronised or bool(by),
        "synchronised_by": "kernel" if state.synchronised else " and ".join(by) or None,
        "leap_indicator": state.leap_indicator(state.synchronised or bool(by)),
        "ntp_offset_ns": state.offset_ns,
        "maxerror_us": state.maxerror_us,
        "esterror_us": state.esterror_us,
        "tai_s": state.tai_s,
        "tick_us": state.tick_us,
        "clocksource": machine.clocksource() or None,
        "drift_ppb": None,
        "segments": None,
        "watch": None,
        "last_jump": None,
        "pending_reanchorings": None,
    }


def _now(fmt: str, store: str) -> None:
    from agent.cli.output import echo, emit_rows, note, quiet_pipe
    from agent.cli.status import document
    from agent.store.sources import opened

    row = of_kernel()
    changes: list[dict[str, Any]] | None = None
    daemons: list[dict[str, Any]] = []
    notices: dict[str, Any] = {}
    try:
        answer = document()
        row.update({k: answer["clock"].get(k) for k in _JSON_ONLY})
        notices = answer.get("notices", {})
        row["pending_reanchorings"] = notices.get("pending")
    except AgentError as error:
        note(f"note: {error.what}: drift is unknown")
    try:
        with opened(store, TABLES_OF) as source:
            changes, row["last_jump"] = changes_in(source)
            daemons = clock_daemons.rows(source)
    except AgentError as error:
        note(f"note: {error.what}: changes are unknown")
    if fmt != "table":
        emit_rows([row], fmt, extra={"changes": changes or [], "notices": notices, "daemons": daemons})
        return
    with quiet_pipe():
        for name, words in words_of(row, notices, daemons, changes):
            echo(f"{name:16}{words}", 16)
    if changes:
        click.echo("\nlast changes")
        emit_rows(changes, fmt, _CHANGES)


def words_of(
    row: dict[str, Any], notices: dict[str, Any], daemons: list[dict[str, Any]], known: list[dict[str, Any]] | None
) -> Iterator[tuple[str, str]]:
    """(topic, text), the most urgent first. known: the changes in the store, None if it cannot be read."""
    from agent.cli.cells import duration

    bounds = (
        f"error by the kernel: at most {duration(row['maxerror_us'] * 1e3)}, estimated"
        f" {duration(row['esterror_us'] * 1e3)}"
    )
    if row["synchronised_by"] == "kernel":
        yield "synchronised", f"yes; {bounds}"
    elif row["synchronised"]:
        yield (
            "synchronised",
            f"yes, by {row['synchronised_by']}, but not in the kernel's status (no `rtcsync`); {bounds}",
        )
    else:
        yield "synchronised", f"NO: no time daemon synchronises this clock; {bounds}"
    yield "offset", f"{_signed(row['ntp_offset_ns'])} still to be slewed"
    tick = f", of it {(row['tick_us'] - 10_000) * 100:+d} ppm by its tick" if row["tick_us"] != 10_000 else ""
    yield "frequency", f"{row['freq_ppb'] / 1e3:+.3f} ppm correction{tick}"
    yield (
        "drift",
        "unknown" if row["drift_ppb"] is None else f"{row['drift_ppb'] / 1e3:+.3f} ppm against the raw oscillator",
    )
    yield (
        "leap second",
        f"{_LEAP[row['leap_indicator']]}; TAI - UTC is {row['tai_s']} s" + ("" if row["tai_s"] else " (not set)"),
    )
    yield from clock_daemons.words(daemons)
    yield "clocksource", row["clocksource"] or "unknown"
    yield "last jump", "unknown" if known is None else _jump(row["last_jump"])
    if notices:
        yield "notices", _subscribers(notices)
        for entry in notices.get("waiting", []):
            late = duration(time.clock_gettime_ns(time.CLOCK_BOOTTIME) - entry["since_ns"])
            limiter = f"limiter {entry['limiter']} of " if entry["limiter"] else ""
            yield (
                "",
                (
                    f"not acknowledged: {limiter}{entry['comm']} pid {entry['pid']}, {entry['pending']} pending, the"
                    f" oldest for {late}"
                ),
            )
        for channel, hook in notices.get("hooks", {}).items():
            failed = f", {hook['failed']} failed ({hook['error']})" if hook["failed"] else ""
            yield (
                f"  {channel}",
                f"{hook['state']}: {hook['delivered']} delivered{failed}"
                + (f", {hook['dropped']} skipped" if hook["dropped"] else ""),
            )
    if row["watch"] not in (None, "running"):
        yield "clock watch", str(row["watch"])
    yield REAL_MONO, f"{row['real_mono_ns']} ns"
    yield "boot - mono", f"{row['boot_mono_ns']} ns (suspended)"
    yield "mono - raw", f"{row['mono_raw_ns']} ns"
    yield "read within", duration(row["err_ns"])


def _signed(ns: int) -> str:
    from agent.cli.cells import duration

    return f"{'+' if ns > 0 else ''}{duration(ns)}"


def _jump(jump: dict[str, Any] | None) -> str:
    from agent.cli.cells import cell, duration
    from agent.common.host import boot_id

    if jump is None:
        return "none in the store"
    direction = "back" if jump["size_ns"] < 0 else "forward"
    ago = (
        duration(time.clock_gettime_ns(time.CLOCK_BOOTTIME) - jump["t_ns"]) + " ago"
        if jump["boot_id"] == boot_id()
        else "before this boot"
    )
    actor = (
        f"{jump['comm']} pid {jump['pid']} ({jump['via']})"
        if jump["pid"]
        else "the kernel, leap second"
        if jump["kind"] == "leap"
        else "an unknown process"
    )
    return (
        f"{direction} by {duration(abs(jump['size_ns']))}, {ago} ({cell('wall_ns', jump['wall_ns'])},"
        f" {cell('t_ns', jump['t_ns'])}), by {actor}"
    )


def change_words(row: dict[str, Any]) -> str:
    """A row of ``changes_in`` in words, without its time."""
    kind = row["kind"] or "change"
    if row["ret"] is not None and row["ret"] < 0:
        kind += " refused by the kernel"
    elif row["kind"] == "frequency" and row["freq_after_ppb"] is not None:
        kind += f" set to {row['freq_after_ppb'] / 1e3:+.3f} ppm"
    elif row["size_ns"]:
        kind += f" of {_signed(row['size_ns'])}"
    who = f"{row['comm']} pid {row['pid']}" if row["pid"] is not None else row["comm"] or "an unknown process"
    return f"{kind}, by {who}" + (f" ({row['via']})" if row["via"] else "")


def _subscribers(notices: dict[str, Any]) -> str:
    dropped = f", {notices['dropped']} dropped" if notices["dropped"] else ""
    n = notices["subscribers"]
    return (
        f"{n} subscriber{'s' * (n != 1)}{dropped}; {notices['acknowledged']} of {notices['sent']} sent acknowledged,"
        f" {notices['pending']} pending"
    )


def changes_in(source: RowSource) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """(the last changes, oldest first; the last jump)."""
    from agent.ask.question import Question, Where

    jumped = (Where("kind", "in", ("step", "leap")), Where("size_ns", "<>", 0), Where("ret", ">=", 0, or_unknown=True))
    last = source.rows(Question("clock_change", _CHANGES).newest(10))[::-1]
    jumps = source.rows(Question("clock_change", ("boot_id", *_CHANGES), jumped).newest(1))
    return last, jumps[0] if jumps else None
