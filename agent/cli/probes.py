"""``tickscope probes``: the probe families of the running agent."""

from __future__ import annotations

import click

from agent.cli import options, output
from agent.cli.status import document


@click.command("probes")
@options.common
def command(fmt: str, store: str) -> None:
    """List the probes with their state and, if one is not attached, the reason and the remedy; then the programs and
    libraries that are not observed.

    hits and run_ns are the number of runs and the run time of a probe's programs. The kernel counts them while `sysctl
    kernel.bpf_stats_enabled=1`, which makes every BPF program of this host a little slower. missed counts the runs that
    the kernel skipped.
    """
    answer = document()
    rows = answer["probes"] + [
        {"programs": None, "hits": None, "run_ns": None, "missed": None, **program} for program in answer["programs"]
    ]
    output.emit_rows(rows, fmt, ["probe", "state", "programs", "hits", "run_ns", "missed", "reason", "remedy"])
