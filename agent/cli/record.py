"""tickscope record: writes a recording of the agent's rows for a later replay."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from types import FrameType
from typing import BinaryIO

import click

from agent.cli import options
from agent.errors import INTERRUPTED, UNREACHABLE, AgentError

_POLL_S = 0.1


@click.command("record")
@click.option("-o", "--output", "path", required=True, type=click.Path(dir_okay=False), help="File to write.")
@options.duration
@options.since(
    "Record the past from the store instead, from this time on: 15m, 22:13, yesterday, ISO 8601, boot+SECONDS."
)
@click.option("--until", metavar="TIME", help="With --since: up to this time, not including it.")
@options.store
def command(path: str, duration: float | None, since: str | None, until: str | None, store: str) -> None:
    """Write new rows of the store to a recording for `tickscope replay`, until Ctrl-C or for --duration. With --since,
    write stored rows of the newest boot instead.

    \b
    tickscope record -o trouble.rec --duration 60s
    tickscope record -o trouble.rec --since 15m
    tickscope replay trouble.rec
    """
    from agent.cli.output import note
    from agent.store import segments
    from agent.store.follow import Follower
    from agent.store.recorder import Recorder, wait_for_head

    if until is not None and since is None:
        raise click.UsageError("--until needs --since")
    if since is not None and duration:
        raise click.UsageError("--since and --duration cannot be used together")
    if since is not None:
        _past(path, store, since, until)
        return
    dir_fd = segments.open_dir(store)
    follower = Follower(dir_fd)
    ends = time.monotonic() + duration if duration else math.inf
    interrupted = Interruption()
    try:
        if segments.writer(dir_fd) is None:
            note("note: no agent writes this store now; waiting for one")
        head, frames = wait_for_head(follower, ends, _POLL_S)
        if head is None:
            raise AgentError(
                "nothing to record: no agent wrote to the store", remedy="sudo tickscope run", exit_code=UNREACHABLE
            )
        with _created(path) as out:
            recorder = Recorder(out, head)
            recorder.add(frames)
            last = False
            while not last:
                time.sleep(max(0.0, min(_POLL_S, ends - time.monotonic())))
                last = bool(interrupted) or time.monotonic() >= ends
                missed = follower.missed
                recorder.add(follower.poll())
                if follower.missed > missed:
                    recorder.missed(follower.missed - missed)
                if sys.stderr.isatty():
                    print(
                        f"\rrecording: {recorder.rows} rows, {recorder.bytes} bytes",
                        end="",
                        file=sys.stderr,
                        flush=True,
                    )
            recorder.close()
        if sys.stderr.isatty():
            print(file=sys.stderr)
        note(f"recorded {recorder.rows} rows and {recorder.ticks} ticks, {recorder.bytes} bytes, in {path}")
    except OSError as error:
        raise AgentError(
            f"cannot write {path}: {error.strerror}",
            why="the recording is incomplete; its rows can be replayed",
            remedy="name another place: tickscope record -o FILE",
        ) from error
    finally:
        interrupted.restore()
        follower.close()
        os.close(dir_fd)
    if interrupted:
        click.get_current_context().exit(INTERRUPTED)


def _past(path: str, store: str, since: str, until: str | None) -> None:
    from agent.ask.question import Question
    from agent.cli.output import note
    from agent.errors import NO_ROWS
    from agent.store.query import Session
    from agent.store.recorder import record_past
    from agent.tables import TABLES

    with Session(store, TABLES, since, until) as source:
        if not source.boots:
            raise AgentError("nothing to record: the store is empty", exit_code=UNREACHABLE)
        boot_id = source.boots[-1]
        hosts = source.rows(Question("clock_offset", ("host",), within=False, limit=1))
        with _created(path) as out:
            try:
                recorder = record_past(out, source, boot_id, hosts[0]["host"] if hosts else "")
            except OSError as error:
                raise AgentError(f"cannot write {path}: {error.strerror}", remedy="name another place") from error
        notes = source.notes
    for text in notes:
        note(f"note: {text}")
    note(f"recorded {recorder.rows} rows and {recorder.ticks} ticks, {recorder.bytes} bytes, in {path}")
    if not recorder.rows:
        click.get_current_context().exit(NO_ROWS)


def _created(path: str) -> BinaryIO:
    try:
        return open(path, "wb")
    except OSError as error:
        raise AgentError(
            f"cannot write {path}: {error.strerror}", remedy="name another place: tickscope record -o FILE"
        ) from error


class Interruption:
    """True after SIGINT or SIGTERM. The recording is then ended cleanly, between two frames."""

    def __init__(self) -> None:
        self._came = False
        self._before = {number: signal.signal(number, self._take) for number in (signal.SIGINT, signal.SIGTERM)}

    def _take(self, _number: int, _frame: FrameType | None) -> None:
        self._came = True

    def __bool__(self) -> bool:
        return self._came

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
