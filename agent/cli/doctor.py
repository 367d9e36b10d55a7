"""``tickscope doctor``: what this host can and cannot do."""

from __future__ import annotations

import sys

import click

from agent import doctor
from agent.cli import options, output
from agent.errors import NO_ROWS


@click.command("doctor")
@options.output
@options.store
def command(fmt: str, store: str) -> None:
    """Check what this host can and cannot do, with the remedy for each. Exit status 3 if anything fails."""
    checks = doctor.examine(store)
    if fmt == "json":
        output.emit_doc({"checks": [c._asdict() for c in checks]})
    elif fmt == "table":
        for c in checks:
            output.echo(f"{c.state:<5} {c.id:<14} {c.found}", 21)
            if c.remedy:
                output.echo(f"{'':<20} try: {c.remedy}", 26)
    else:
        output.emit_rows([c._asdict() for c in checks], fmt)
    if any(c.state == "fail" for c in checks):
        sys.exit(NO_ROWS)
