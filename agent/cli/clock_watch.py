"""``tickscope clock watch``: every jump of the wall clock as it happens."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import time
from collections.abc import Iterator

import click

from agent.cli import options
from agent.errors import UNREACHABLE, AgentError

_NOTICE = ("t_ns", "kind", "size_ns", "err_ns", "real_mono_before_ns", "real_mono_after_ns", "pid", "comm", "id")
_AGAIN_S = 1.0


@click.command("watch")
@options.stream()
def command(fmt: str) -> None:
    """Print every step of the wall clock as it happens, one per line, until interrupted (exit status 130)."""
    from agent.cli.output import begin_stream, emit_stream, quiet_pipe
    from agent.cli.status import run_dir

    with quiet_pipe():
        begin_stream(fmt, _NOTICE)
        for line in _lines(os.path.join(run_dir(), "notices.sock")):
            notice = json.loads(line)
            emit_stream([{**notice, **(notice.get("actor") or {})}], fmt, _NOTICE)


def _lines(path: str) -> Iterator[bytes]:
    """Notices. Reconnects when the clock watch is restarted or disconnects this client as too slow.

    Raises AgentError (exit code 4) if nothing listens.
    """
    from agent.cli.output import note

    for again in itertools.count():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as notices:
            try:
                notices.connect(path)
                notices.shutdown(socket.SHUT_WR)  # read-only: it acknowledges nothing
            except OSError as error:
                raise AgentError(
                    f"no {'more ' if again else ''}notices at {path}",
                    why=str(error.strerror),
                    remedy="tickscope status, or start an agent: sudo tickscope run",
                    exit_code=UNREACHABLE,
                ) from error
            if again:
                note(
                    "note: connected anew, since the connection had ended: a jump in between would be missing here,"
                    " tickscope clock history has it"
                )
            with notices.makefile("rb") as lines, contextlib.suppress(ConnectionResetError):
                yield from (line for line in lines if line.endswith(b"\n"))
        time.sleep(_AGAIN_S)
