"""``tickscope clock convert``: times through the offset history."""

from __future__ import annotations

import click

from agent.cli import options
from agent.errors import NO_ROWS

_CONVERTED = ("boot_id", "t_ns", "wall_ns", "err_ns", "state", "alt_ns")


@click.command("convert")
@click.argument("time")
@options.common
def command(time: str, fmt: str, store: str) -> None:
    """TIME through the offset history: boot+SECONDS to wall time; an ISO time, or 5m ago and alike, to CLOCK_BOOTTIME.

    `state` is ambiguous where that wall time occurred twice, around a backward step (then `alt_ns` is the other answer), and skipped where a
    forward step left it out (then t_ns is the step).
    """
    import numpy as np

    from agent.cli.clock_history import histories
    from agent.cli.output import emit_rows, note
    from agent.columns import NULL_I64
    from agent.store.query import Session
    from agent.store.window import parse
    from agent.tables import DERIVED

    states = next(c for c in DERIVED if c.name == "wall_state").names
    rows = []
    with Session(store, ["clock_offset"]) as session:
        bound = parse(time, session.boots)
        for boot, one in histories(session).items():
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
