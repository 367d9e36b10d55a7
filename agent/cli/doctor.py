"""``tickscope doctor``: what this host can and cannot do."""

from __future__ import annotations

import sys

import click

from agent import doctor
from agent.cli import options, output
from agent.errors import NO_ROWS


@click.command("doctor")
@options.common
def command(fmt: str, store: str) -> None:
    """Check what this host can and cannot do, with the remedy for each. Exit status 3 if anything fails."""
    checks = doctor.examine(store)
    if fmt == "json":
        output.emit_doc({"checks": [c._asdict() for c in checks]})
    elif fmt == "table":
        for c in checks:
            print(f"{c.state:<5} {c.id:<14} {c.found}")
            if c.remedy:
                print(f"{'':<20} try: {c.remedy}")
    else:
        output.emit_rows([c._asdict() for c in checks], fmt)
    if any(c.state == "fail" for c in checks):
        sys.exit(NO_ROWS)
