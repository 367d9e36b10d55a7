"""tickscope replay: the findings that the correlator makes of a recording."""

from __future__ import annotations

from typing import Any

import click

from agent.cli import options
from agent.errors import NO_ROWS


@click.command("replay")
@click.argument("file", type=click.Path(dir_okay=False), metavar="F")
@click.option("--without", metavar="TABLE", multiple=True, help="As if TABLE had not been recorded; may be given several times.")
@click.option("--jump-threshold", default="all", metavar="SIZE", help="As for `tickscope run`.")
@options.common
def command(file: str, without: tuple[str, ...], jump_threshold: str, fmt: str, store: str) -> None:
    """Findings that the correlator makes of the recording F, in their latest state.

    The same recording gives the same output, byte by byte, on any machine. Leaving a table out shows what a finding rests on.

    \b
    tickscope record -o trouble.rec --duration 60
    tickscope replay trouble.rec
    tickscope replay trouble.rec --without clock_change
    """
    from agent.cli.findings import show
    from agent.cli.output import note
    from agent.store.names import known
    from agent.tables import TABLES

    rows, losses = replayed(file, frozenset(known(name, TABLES, "table") for name in without), jump_threshold)
    show(rows, fmt)
    for reason, count in losses.items():
        if count:
            note(f"note: {count} rows were not taken into account ({reason})")
    if not rows:
        note("no findings: the recording shows nothing wrong")
        click.get_current_context().exit(NO_ROWS)


def replayed(file: str, without: frozenset[str] = frozenset(), jump_threshold: str = "all") -> tuple[list[dict[str, Any]], dict[str, int]]:
    """(findings of a recording, rows that the correlator could not take into account, by reason).

    The correlator gets what the recorded one got: the same batches and the same watermarks in the same order. Raises
    AgentError for a file that is no whole recording.
    """
    import numpy as np

    from agent.batch import Batch
    from agent.cli.findings import decoded
    from agent.config import jump_threshold_ns
    from agent.correlate.config import with_threshold
    from agent.correlate.correlator import Correlator
    from agent.store.arrow import to_arrow
    from agent.store.frames import Kind, read_file, read_head
    from agent.tables import TABLES

    correlator = Correlator(with_threshold(jump_threshold_ns(jump_threshold)))
    found: dict[bytes, np.ndarray] = {}
    head = read_head(file)
    for frame in read_file(file):
        if frame.kind == Kind.ROWS and frame.table not in without:
            correlator.feed(Batch(frame.table, frame.rows))
        elif frame.kind == Kind.TICK:
            for batch in correlator.advance(frame.t_ns):
                found[bytes(batch.rows["finding_id"][0])] = batch.rows
    rows = np.concatenate([TABLES["finding"].empty(0), *found.values()])
    rows = rows[np.lexsort((rows["finding_id"], rows["t_ns"]))]
    return decoded(to_arrow("finding", rows, head.boot_id, head.host).to_pylist()), correlator.losses()
