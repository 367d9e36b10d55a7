"""``tickscope probes``: the probe families of the running agent."""

from __future__ import annotations

import click

from agent.cli import options, output
from agent.cli.status import document


@click.command("probes")
@options.common
def command(fmt: str, store: str) -> None:
    """The probes, their state, and where one is not attached: why, and what to do."""
    output.emit_rows(document()["probes"], fmt, ["probe", "state", "programs", "hits", "run_ns", "missed", "reason", "remedy"])
