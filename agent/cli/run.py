"""``tickscope run``: checks the configuration, then executes the agent."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from agent.cli import options
from agent.cli.output import knows_escapes
from agent.common.lean import without_docstrings
from agent.config import Config, resolve
from agent.log import INFO, log_message, use
from agent.posix.signals import hold


def run_agent(config: Config) -> None:
    """Replaces this process by the agent (exec, so that nothing of the CLI stays in memory). Does not return."""
    settings = os.memfd_create("tickscope-config", 0)  # not a pipe, which holds 64 KB and then blocks
    os.write(settings, json.dumps(config.to_json()).encode())
    os.lseek(settings, 0, os.SEEK_SET)
    # -P: do not import from the current directory, which may be a clone or closed to the agent's user. One malloc
    # arena, which returns freed arrays to the system, and no BLAS threads: the agent has some tens of megabytes.
    environment = {
        **os.environ,
        # only ours: other directories may have modules of the same names
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "OPENBLAS_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": "131072",
        "MALLOC_TRIM_THRESHOLD_": "262144",
    }
    if config.live:
        log_message("tickscope: attaching the probes; the first time this takes some seconds", INFO)
    hold()
    command = [sys.executable, "-P", *without_docstrings(), "-m", "agent.start", str(settings)]
    os.execve(sys.executable, command, environment)


def flags(duration: float | None, **given: Any) -> dict[str, Any]:
    """Command-line values as settings."""
    return {**given, "duration_s": duration, "live": sys.stdout.isatty() and knows_escapes()}


@click.command("run")
@click.option(
    "--config", "config_file", type=click.Path(dir_okay=False), envvar="TICKSCOPE_CONFIG", help="Settings (YAML)."
)
@options.duration
@options.settings()
@options.brokers
def command(
    config_file: str | None,
    duration: float | None,
    log_format: str | None,
    **settings: str | tuple[str, ...] | None,
) -> None:
    """Run the agent in the foreground.

    The agent needs root to load its BPF programs, and drops root privileges before it reads the first event. It prints
    `ready` on stderr when all probes are attached, and a line when a finding opens and when it closes (in the journal,
    with a priority). On a terminal a line below says how many are open; `tickscope top` shows more. Ctrl-C stops the
    agent and prints totals and losses. SIGHUP reloads the settings, and reports those that need a restart.
    """
    from agent.common.credentials import has_password
    from agent.queues.catalogue import broker

    if log_format:
        use(log_format)  # also for an error in the settings
    for name, servers in settings.items():
        if isinstance(servers, tuple) and any(map(has_password, servers)):
            log_message(
                f"tickscope: {broker(name).flag} has a password: it is visible in ps and in the shell's history; use"
                f" password_file, password_variable or password_credential in the settings, or {broker(name).variable}"
            )
    given = flags(duration, log_format=log_format, **{name: value or None for name, value in settings.items()})
    run_agent(resolve(given, os.environ, config_file))
