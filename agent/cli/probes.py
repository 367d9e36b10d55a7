"""``tickscope probes``: the probe families of the running agent."""

from __future__ import annotations

import click

from agent.cli import options, output
from agent.cli.status import document


@click.command("probes")
@options.common
def command(fmt: str, store: str) -> None:
    """The probes, their state, and where one is not attached: why, and what to do.

    hits and run_ns (how often its programs ran, and how long) are counted while `sysctl kernel.bpf_stats_enabled=1`, which makes
    every BPF program of this host a little slower. missed: runs that the kernel left out.
    """
    output.emit_rows(document()["probes"], fmt, ["probe", "state", "programs", "hits", "run_ns", "missed", "reason", "remedy"])
