"""``tickscope queues watch``: the queues again and again, on one screen."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from typing import Any

import click

from agent.cli import options
from agent.common.printable import printable

#: A round takes at most a fifth of the time, however large the store is.
_IDLE = 4


@click.command("watch")
@click.option(
    "--every",
    type=options.Duration(),
    default="2s",
    show_default=True,
    metavar="S",
    help="Interval: 2s, 1m.",
)
@options.stream()
@options.store
def command(every: float, fmt: str, store: str) -> None:
    """Show the queues of brokers on one screen, the worst first, repeatedly until interrupted (Ctrl-C, exit status
    130). Queues of the kernel are shown while something waits in them.

    With thousands of queues the interval is longer: at least five times what a round takes.

    In a pipe each round is a table of its own; -o ndjson and csv have a row for each queue and round.

    \b
    tickscope queues watch --every 5s
    """
    from agent.cli import queues_list
    from agent.cli.output import begin_stream, emit_stream, quiet_pipe

    with quiet_pipe():
        if fmt != "table":
            begin_stream(fmt, queues_list.COLUMNS)
        elif sys.stdout.isatty():
            sys.stdout.write("\x1b[2J")
        while True:
            begun = time.monotonic()
            brokers, kernel, _, notes = queues_list.read("5m", store)
            kernel = [row for row in kernel if row["length"]]
            if fmt != "table":
                emit_stream([*brokers, *kernel], fmt, queues_list.COLUMNS)
            else:
                _draw(brokers, kernel, notes)
            took = time.monotonic() - begun
            time.sleep(max(every - took, _IDLE * took))


def _draw(brokers: list[dict[str, Any]], kernel: list[dict[str, Any]], notes: list[str]) -> None:
    from agent.cli import layout, queues_text
    from agent.cli.output import coloured
    from agent.queues.status import severity

    width, colour = layout.room(sys.stdout), coloured(sys.stdout)
    brokers = sorted(brokers, key=lambda row: -severity(row["status"]))
    lines = [_heading(brokers), *(printable(note) for note in notes), ""]
    lines += queues_text.broker_lines(brokers, width, colour) if brokers else []
    lines += ["", *queues_text.kernel_lines(kernel, width, colour)] if kernel else []
    if width is None:
        print(*lines, "", sep="\n", flush=True)
        return
    height = max(shutil.get_terminal_size().lines, 4)
    if len(lines) > height - 1:
        lines = [*lines[: height - 2], f"and {len(lines) - height + 2} more lines"]
    # Lines with colours fit already; the others are cut, so that none goes on in the next line.
    fitted = [line if "\x1b" in line else line[:width] for line in lines]
    sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in fitted) + "\x1b[J")
    sys.stdout.flush()


def _heading(brokers: list[dict[str, Any]]) -> str:
    """The time, and how many queues have which status."""
    counts = Counter(row["status"] or "no status" for row in brokers)
    states = ", ".join(f"{count} {status}" for status, count in counts.items()) or "no queue of a broker is polled"
    return f"{time.strftime('%H:%M:%S')}  {states}"
