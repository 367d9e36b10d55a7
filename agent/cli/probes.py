"""``tickscope probes``: the probe families of the running agent."""

from __future__ import annotations

import click

from agent.cli import options, output
from agent.cli.status import document


@click.command("probes")
@options.common
def command(fmt: str, store: str) -> None:
    """The probes, their state, and where one is not attached: why, and what to do; then programs and libraries that are
    not seen.

    hits and run_ns (how often its programs ran, and how long) are counted while `sysctl kernel.bpf_stats_enabled=1`,
    which makes every BPF program of this host a little slower. missed: runs that the kernel left out.
    """
    answer = document()
    rows = answer["probes"] + [
        {"programs": None, "hits": None, "run_ns": None, "missed": None, **told} for told in answer["programs"]
    ]
    output.emit_rows(rows, fmt, ["probe", "state", "programs", "hits", "run_ns", "missed", "reason", "remedy"])
