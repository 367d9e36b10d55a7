"""``tickscope clock convert``: converts times through the offset history."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from agent.cli import options
from agent.errors import NO_ROWS, USAGE, AgentError

if TYPE_CHECKING:
    from agent.ask.window import Bound
    from agent.clock.history import History
    from agent.clock.timens import Offsets

_CONVERTED = ("boot_id", "t_ns", "wall_ns", "err_ns", "state", "alt_ns")
_OF_PROCESS = ("pid", "process_boottime_ns", "process_monotonic_ns")
_FAR_NS = 2**62  # 146 years
_MONO = re.compile(r"mono\+(\d+(?:\.\d+)?)s?")


@click.command("convert")
@click.argument("time", nargs=-1, required=True)
@click.option(
    "--pid",
    type=int,
    metavar="PID",
    help="Convert in the time namespace of this process, both TIME and the answer.",
)
@click.option(
    "--boot",
    metavar="BOOT",
    help="The boot from which boot+ and mono+ count: the first characters of its id, or -1 for the previous boot.",
)
@options.reading
def command(time: tuple[str, ...], pid: int | None, boot: str | None, fmt: str, store: str) -> None:
    """Convert a time through the offset history. boot+SECONDS and mono+SECONDS (CLOCK_MONOTONIC) become wall time. An
    ISO time, @SECONDS since 1970 or a relative time (5m ago) becomes CLOCK_BOOTTIME, one row for each boot of the store
    that had that time. A relative time counts from now, or from the end of a recording.

    `state` is ambiguous if that wall time occurred twice, around a backward step (alt_ns is the other answer); skipped
    if a forward step left it out (t_ns is the time of the step); extrapolated if no agent watched the clock: before the
    first and after the last reading in the store. err_ns then grows with the distance, by the possible drift of the
    oscillator and the steps seen before. If somebody sets the clock by hand, the error may be larger.

    \b
    tickscope clock convert 2026-11-21T10:06:30.9515
    tickscope clock convert boot+3600 --boot -1
    tickscope clock convert 5m ago
    tickscope clock convert mono+86400.5 --pid 4711
    """
    from agent.cli.clock_history import histories
    from agent.cli.output import emit_rows, note
    from agent.clock import timens
    from agent.common.host import boot_id
    from agent.store.sources import opened

    text, offsets = " ".join(time), _offsets(pid, boot)
    with opened(store, ["clock_offset"]) as source:
        known = histories(source)
        chosen = _chosen(boot, source.boots)
        mono = _MONO.fullmatch(text.strip())
        bound = source.bound("boot+" + mono[1] if mono else text)
        if not all(abs(ns) < _FAR_NS for ns in (bound.t_ns, bound.wall_ns or 0)):
            raise AgentError(f"cannot convert {text}", why="the time is out of range", exit_code=USAGE)
        # By elapsed time: the wall clock may have been stepped since. For earlier boots there is only the wall clock.
        back = bound.boot_id is not None and mono is None and not text.strip().startswith("boot+")
        ago = back and bound.boot_id in known and bound.t_ns >= 0 and chosen in (None, bound.boot_id)
        counts = ago or (bound.boot_id is not None and bound.wall_ns is None)
        read_with = timens.Offsets() if ago else offsets
        rows = []
        for name, one in known.items():
            if name == (chosen or (bound.boot_id if counts else name)):
                rows += _converted(
                    name, one, bound, name == source.boots[-1], counts, read_with, from_mono=mono is not None
                )
    if pid is not None:
        rows = [row for row in rows if row["boot_id"] == boot_id()]
        for row in rows:
            _add_process(row, pid, known[row["boot_id"]], offsets)
    emit_rows(rows, fmt, _CONVERTED + (_OF_PROCESS if pid is not None else ()))
    if not rows:
        note("the offset history does not reach that time")
        click.get_current_context().exit(NO_ROWS)


def _offsets(pid: int | None, boot: str | None) -> Offsets:
    from agent.clock import timens

    if pid is None:
        return timens.Offsets()
    if boot is not None:
        raise AgentError(
            "--pid and --boot cannot be used together", why="a process belongs to the current boot", exit_code=USAGE
        )
    try:
        return timens.of(pid)
    except (OSError, ValueError) as error:
        raise AgentError(
            f"cannot read the time namespace of process {pid}",
            why=getattr(error, "strerror", None) or str(error),
            exit_code=USAGE,
        ) from error


def _chosen(boot: str | None, boots: list[str]) -> str | None:
    """The boot id that --boot names. Raises AgentError (exit code 2)."""
    if boot is None:
        return None
    if re.fullmatch(r"-\d{1,6}|0", boot):
        back = len(boots) - 1 + int(boot)
        found = [boots[back]] if back >= 0 else []
    else:
        found = [b for b in boots if b.startswith(boot)]
    if len(found) != 1:
        raise AgentError(
            f"--boot {boot} names {len(found) or 'no'} boots of the store",
            why=f"it holds {', '.join(boots) or 'none'}",
            exit_code=USAGE,
        )
    return found[0]


def _converted(
    boot: str, history: History, bound: Bound, newest: bool, counts: bool, offsets: Offsets, from_mono: bool
) -> list[dict[str, Any]]:
    """The row of one boot, or none if it did not have that time. counts: the time counts from the boot; otherwise it is
    a wall time.
    """
    import numpy as np

    from agent.columns import NULL_I64
    from agent.common.table import DERIVED

    states = next(c for c in DERIVED if c.name == "wall_state").names
    if counts:
        given = bound.t_ns - (offsets.monotonic_ns if from_mono else offsets.boottime_ns)
        if from_mono:
            given = int(history.mono_to_boot(np.array([given]))[0])
        got = history.to_wall(np.array([given], np.int64))
    else:
        given = int(bound.wall_ns or 0)
        got = history.to_boot(np.array([given], np.int64))
    err, alt = (None if v == NULL_I64 else v for v in (int(got.err_ns[0]), int(got.alt_ns[0])))
    answer = int(got.ns[0])
    if not counts and (err is None or not (newest or answer <= history.watched_ns)):
        return []
    t_ns, wall_ns = (given, answer) if counts else (answer, given)
    return [
        {
            "boot_id": boot,
            "t_ns": t_ns,
            "wall_ns": wall_ns,
            "err_ns": err,
            "state": states[int(got.state[0])],
            "alt_ns": alt,
        }
    ]


def _add_process(row: dict[str, Any], pid: int, history: History, offsets: Offsets) -> None:
    """Adds the readings of the process's own clocks at the row's time."""
    import numpy as np

    mono = int(history.boot_to_mono(np.array([row["t_ns"]]))[0])
    row.update(
        {
            "pid": pid,
            "process_boottime_ns": row["t_ns"] + offsets.boottime_ns,
            "process_monotonic_ns": mono + offsets.monotonic_ns,
        }
    )
