"""``tickscope clock what-if``: what a jump that has not happened would do to the timers of the polled servers."""

from __future__ import annotations

from typing import Any

import click

from agent.cli import options
from agent.cli.limiters_replay import Signed
from agent.errors import NO_ROWS, UNREACHABLE, AgentError

_COLUMNS = (
    "system",
    "destination",
    "object",
    "kind",
    "timers",
    "clock",
    "was_due_ns",
    "is_due_ns",
    "moved_ns",
    "consequence",
)


@click.command("what-if")
@click.argument("size", type=Signed(), metavar="DURATION")
@options.reading
def command(size: int, fmt: str, store: str) -> None:
    """Show what a jump of the wall clock by DURATION would do now to the timers of the servers that the running agent
    polls, as rows of `timer_effect`. A jump back needs `--` before it.

    Timers of servers that cannot be reached are as of their last poll (polled_ns).

    \b
    tickscope clock what-if 2h
    tickscope clock what-if -- -500ms
    tickscope clock what-if -o json -- -500ms
    """
    import numpy as np

    from agent.cli.output import emit_rows, note
    from agent.cli.status import run_dir
    from agent.clock import sample
    from agent.queues.timer_effect import TABLE, effects, plain, row_of
    from agent.service.control import ask

    found: Any = ask(run_dir(), "timers").get("rows")
    try:
        rows = np.frombuffer(b"".join(row_of(one) for one in found), TABLE.dtype)
    except Exception as error:
        raise AgentError(
            "the agent's answer cannot be read", why=f"{type(error).__name__}: {error}", exit_code=UNREACHABLE
        ) from error
    now = sample.read()
    moved = effects(rows, now.t_ns, size, now.real_boot_ns)
    others = () if fmt == "table" else tuple(name for name in TABLE.by_name if name not in _COLUMNS)
    emit_rows([plain(row) for row in moved], fmt, _COLUMNS + others)
    if not len(moved):
        note("no timers: no server with timers is polled (docs/clock-what-if.md)")
        click.get_current_context().exit(NO_ROWS)
