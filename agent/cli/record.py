"""tickscope record: keep what the agent sees, to be replayed anywhere."""

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
@click.option("-o", "--output", "path", required=True, type=click.Path(dir_okay=False), help="The recording to write.")
@options.duration
@options.store
def command(path: str, duration: float | None, store: str) -> None:
    """Copy everything the store receives from now on into a file for `tickscope replay`, until Ctrl-C or for
    --duration.

    \b
    tickscope record -o trouble.rec --duration 60s
    tickscope replay trouble.rec
    """
    from agent.cli.output import note
    from agent.store import segments
    from agent.store.follow import Follower
    from agent.store.recorder import Recorder, wait_for_head

    dir_fd = segments.open_dir(store)
    follower = Follower(dir_fd)
    until = time.monotonic() + duration if duration else math.inf
    interrupted = Interruption()
    try:
        if segments.writer(dir_fd) is None:
            note("note: no agent writes this store now; waiting for one")
        head, frames = wait_for_head(follower, until, _POLL_S)
        if head is None:
            raise AgentError(
                "nothing to record: no agent wrote to the store", remedy="sudo tickscope run", exit_code=UNREACHABLE
            )
        with _created(path) as out:
            recorder = Recorder(out, head)
            recorder.add(frames)
            last = False
            while not last:
                time.sleep(max(0.0, min(_POLL_S, until - time.monotonic())))
                last = bool(interrupted) or time.monotonic() >= until
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
            why="the recording is cut off here; what is in it can be replayed",
            remedy="name another place: tickscope record -o FILE",
        ) from error
    finally:
        interrupted.restore()
        follower.close()
        os.close(dir_fd)
    if interrupted:
        click.get_current_context().exit(INTERRUPTED)


def _created(path: str) -> BinaryIO:
    try:
        return open(path, "wb")
    except OSError as error:
        raise AgentError(
            f"cannot write {path}: {error.strerror}", remedy="name another place: tickscope record -o FILE"
        ) from error


class Interruption:
    """True once SIGINT or SIGTERM came: the recording is then ended cleanly, never between two frames."""

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
