"""tickscope demo: the agent beside a small real workload."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import click

from agent.cli import options

if TYPE_CHECKING:
    from agent.config import Config
    from agent.demo.session import Workload


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command("demo")
@click.option(
    "--config", "config_file", type=click.Path(dir_okay=False), envvar="TICKSCOPE_CONFIG", help="Settings (YAML)."
)
@options.duration
@click.option(
    "--step-clock", is_flag=True, help="Step the wall clock by +0.3 ms and back, once. Without it no clock is touched."
)
@options.settings("syscalls", "store")
def command(
    config_file: str | None, duration: float | None, step_clock: bool, syscalls: str | None, store: str | None
) -> None:
    """Run the agent together with a small workload on loopback, which is removed at the end.

    The workload: a private Redis with a stream and a consumer group, a rate limiter in Python that uses it, a Go
    program with golang.org/x/time/rate, TLS connections, and a program that syncs files. The demo stops its Redis for
    1.5 seconds, first after 15 seconds and then every 30 seconds, so that there is something to find. If an agent runs
    on this host already, only the workload is started. In another shell:

    \b
    tickscope findings
    tickscope explain last
    tickscope query limiter_decision --since 1m --group-by limiter_id,result
    """
    from pathlib import Path

    from agent.cli.output import note
    from agent.cli.run import flags
    from agent.config import resolve
    from agent.demo.session import Workload
    from agent.posix.privilege import require_root

    given: dict[str, Any] = flags(duration, syscalls=syscalls, store=store)
    settings = resolve(given, os.environ, config_file)
    require_root()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # so that the workload is removed at any time
    running = _running(settings.service.run_dir)
    with Workload(Path(settings.service.run_dir) / "intake.sock", settings.duration_s or None, step_clock) as workload:
        for text in workload.notes:
            note(f"demo: {text}")
        if running:
            note(f"demo: the agent that runs on this host (pid {running}) observes the workload; Ctrl-C ends it")
            status = _wait(settings.duration_s)
        else:
            redis = (*settings.queues.brokers.get("redis", ()), *filter(None, [workload.redis_url]))
            status = _agent(resolve({**given, "redis": redis}, os.environ, config_file), workload)
    click.get_current_context().exit(status)


def _running(run_dir: str) -> int | None:
    """The pid of the agent that answers in this directory."""
    from agent.errors import AgentError
    from agent.service.control import ask

    try:
        status: dict[str, Any] = ask(run_dir, "status")
    except AgentError:
        return None
    return next((one["pid"] for one in status["processes"] if one["role"] == "agent"), None)


def _wait(duration_s: float) -> int:
    """Until a signal that ends programs, or so long; 0: without end. Returns the exit status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    if duration_s:
        return 0 if signal.sigtimedwait(_ENDING, duration_s) is None else 130
    signal.sigwait(_ENDING)
    return 130


def _agent(config: Config, workload: Workload) -> int:
    """Runs the agent as ``run`` does, but in a child, because this process must outlive it to end the workload.

    The child is in a session of its own, so that it gets each signal once and from this process. Returns its exit
    status.
    """
    from agent.cli.output import note
    from agent.cli.run import run_agent

    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            run_agent(config)
        finally:
            os._exit(1)

    def pass_on(number: int, _: object) -> None:
        os.kill(child, signal.SIGTERM if number == signal.SIGHUP else number)  # the demo ends when its terminal closes

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH):
        signal.signal(number, pass_on)
    workload.adopt(child)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH):
        signal.signal(number, signal.SIG_IGN)  # only the clean-up is left
    if status < 0:
        note(f"demo: the agent was killed by {signal.Signals(-status).name}; the workload is removed")
    return status if status >= 0 else 128 - status
