"""tickscope demo: the agent beside a small real workload."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click

from agent.cli import options

if TYPE_CHECKING:
    from agent.config import Config
    from agent.demo.session import Workload


@click.command("demo")
@click.option("--duration", type=click.FloatRange(1), metavar="S", help="Stop after S seconds instead of at Ctrl-C.")
@click.option("--step-clock", is_flag=True, help="Step the wall clock by +0.3 ms and back, once. Without it no clock is touched.")
@click.option("--config", type=click.Path(dir_okay=False), help="Configuration file.")
@click.option("--store", type=click.Path(file_okay=False), metavar="DIR", help="The store's directory.")
@options.output
def command(duration: float | None, step_clock: bool, config: str | None, store: str | None, fmt: str) -> None:
    """Run the agent together with a small workload of its own, on loopback, which is removed at the end.

    A private Redis with a stream and a consumer group, a rate limiter in Python that asks it, a Go program with
    golang.org/x/time/rate, TLS connections, a program that syncs files. Every 30 seconds that Redis is stopped for 1.5 seconds,
    so that there is something to find. The live summary is shown on a terminal, in the table format:

    \b
    tickscope findings
    tickscope explain last
    tickscope query limiter_decision --since 1m --group-by limiter_id,result
    """
    from pathlib import Path

    from agent.cli.output import note
    from agent.config import resolve
    from agent.demo.session import Workload
    from agent.privilege import require_root

    require_root()
    given: dict[str, Any] = {"store": store, "duration_s": duration, "live": fmt == "table" and sys.stdout.isatty()}
    settings = resolve(given, os.environ, config)
    with Workload(Path(settings.run_dir) / "intake.sock", duration, step_clock) as workload:
        for text in workload.notes:
            note(f"demo: {text}")
        if workload.redis_url is not None:
            settings = resolve({**given, "redis": (*settings.redis, workload.redis_url)}, os.environ, config)
        status = _agent(settings, workload)
    click.get_current_context().exit(status)


def _agent(config: Config, workload: Workload) -> int:
    """Runs the agent as ``run`` does, but as a child, since this process must outlive it to end the workload.

    The child has a session of its own and gets the signals from us, each once.
    """
    import json

    reader, writer = os.pipe()
    child = subprocess.Popen([sys.executable, "-m", "agent.main", str(reader)], pass_fds=[reader], start_new_session=True)
    os.close(reader)
    workload.adopt(child.pid)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda n, _: child.send_signal(n))
    with os.fdopen(writer, "w") as pipe:
        json.dump(config.to_json(), pipe)
    status = child.wait()
    return status if status >= 0 else 128 - status
