"""tickscope tail: prints new rows as they are stored."""

from __future__ import annotations

import os
import time

import click

from agent.cli import options

_POLL_S = 0.1


@click.command("tail")
@options.table
@options.stream("ndjson")
@options.store
def command(table: str, fmt: str, store: str) -> None:
    """Print new rows of TABLE, one per line, until interrupted (Ctrl-C, exit status 130).

    \b
    tickscope tail slow_syscall | jq -r .comm
    """
    from agent.ask.names import columns, known
    from agent.cli.output import begin_stream, emit_stream, note, quiet_pipe
    from agent.store import segments
    from agent.store.follow import Follower
    from agent.store.frames import FrameKind
    from agent.tables import TABLES

    names = columns(known(table, TABLES, "table"))
    dir_fd = segments.open_dir(store)
    follower = Follower(dir_fd, frozenset({table, "clock_offset"}))
    if segments.writer(dir_fd) is None:
        note("note: no agent writes this store now; waiting for one")
    try:
        from agent.store.live import LiveRows

        live = LiveRows(store)
        with quiet_pipe():
            begin_stream(fmt, names)
            while True:
                missed = follower.missed
                for frame in follower.poll():
                    if frame.kind == FrameKind.ROWS and frame.table == "clock_offset" and follower.head:
                        live.learn(follower.head, frame.rows)
                    if frame.kind == FrameKind.ROWS and frame.table == table and follower.head:
                        emit_stream(live.dicts(follower.head, table, frame.rows), fmt, names)
                if follower.missed > missed:
                    note(
                        f"gap: {follower.missed - missed} segments were sealed before they could be read: see them with"
                        " tickscope query"
                    )
                time.sleep(_POLL_S)
    finally:
        follower.close()
        os.close(dir_fd)
