"""``tickscope clock watch``: every jump of the wall clock as it happens."""

from __future__ import annotations

import json
import os
import socket

import click

from agent.errors import INTERRUPTED, UNREACHABLE, AgentError

_NOTICE = ("t_ns", "kind", "size_ns", "err_ns", "real_mono_before_ns", "real_mono_after_ns", "pid", "comm", "id")


@click.command("watch")
@click.option("-o", "--output", "fmt", type=click.Choice(["table", "json", "ndjson", "csv"]), default="table", show_default=True,
              help="Output format (json is ndjson: a stream has no end).")  # fmt: skip
def command(fmt: str) -> None:
    """Every step of the wall clock as it happens, one a line, until interrupted (exit status 130)."""
    from agent.cli.output import emit_stream, quiet_pipe
    from agent.cli.status import run_dir

    path = os.path.join(run_dir(), "notices.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as notices:
        try:
            notices.connect(path)
            notices.shutdown(socket.SHUT_WR)  # it only looks on: nothing is to be acknowledged
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
