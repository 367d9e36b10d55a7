"""tickscope replay: computes the findings of a recording."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from agent.cli import options
from agent.errors import NO_ROWS


@click.command("replay")
@click.argument("file", type=click.Path(dir_okay=False), metavar="F")
@click.option(
    "--without",
    type=options.TableName(),
    metavar="TABLE",
    multiple=True,
    help="Ignore the rows of TABLE; may be given several times.",
)
@click.option("--jump-threshold", default="all", metavar="SIZE", help="As for `tickscope run`.")
@options.common
def command(file: str, without: tuple[str, ...], jump_threshold: str, fmt: str, store: str) -> None:
    """Compute the findings of the recording F with the correlator, and list them in their latest state.

    The same recording gives the same output, byte by byte, on any machine. A truncated recording is read up to its end.
    --without TABLE shows which findings depend on that table.

    \b
    tickscope record -o trouble.rec --duration 60
    tickscope replay trouble.rec
    tickscope replay trouble.rec --without clock_change
    """
    from agent.ask.names import known
    from agent.cli.findings import show
    from agent.cli.output import note
    from agent.tables import TABLES

    found = replayed(file, frozenset(known(name, TABLES, "table") for name in without), jump_threshold)
    show(found.rows, fmt)
    if found.cut:
        note(
            f"note: {file} is cut off: {found.cut}; these are the findings up to there "
            "(the recorder was killed, or the file was copied during recording)"
        )
    for reason, count in found.losses.items():
        if count:
            note(f"note: {count} rows were not evaluated ({reason})")
    if not found.rows:
        note("no findings")
        click.get_current_context().exit(NO_ROWS)


class Replayed(NamedTuple):
    """rows: findings with all columns. losses: rows that the correlator could not use, by reason. cut: why the
    recording ends before its END; empty if it is complete.
    """

    rows: list[dict[str, Any]]
    losses: dict[str, int]
    cut: str


def replayed(file: str, without: frozenset[str] = frozenset(), jump_threshold: str = "all") -> Replayed:
    """The findings of a recording in their latest state, in order of that state's time.

    The correlator gets the same batches and watermarks in the same order as the recorded one. Wall times come from the
    recording's offset history; sentences have them in UTC. Raises AgentError for a foreign or damaged file.
    """
    import numpy as np

    from agent.batch import Batch
    from agent.cli.findings import decoded, joined
    from agent.clock.history import History
    from agent.clock.settings import jump_threshold_ns
    from agent.correlate.correlator import Correlator
    from agent.correlate.replay import states
    from agent.correlate.thresholds import with_threshold
    from agent.store.arrow import to_arrow
    from agent.store.live import with_wall
    from agent.store.recording import Recording
    from agent.store.sentences import in_utc
    from agent.tables import TABLES

    correlator, history = Correlator(with_threshold(jump_threshold_ns(jump_threshold))), History()
    recording = Recording(file)

    def events() -> Iterator[Batch | int]:
        for event in recording.events(without):
            if not isinstance(event, Batch):
                history.watched(event)
            elif event.table == "clock_offset":
                history.append(event.rows)
            yield event

    found = {bytes(state.finding["finding_id"][0]): state for state in states(correlator, events())}
    rows = np.concatenate([TABLES["finding"].empty(0), *(state.finding for state in found.values())])
    rows = rows[rows["merged_into"] == b""]
    rows = in_utc(Batch("finding", rows[np.lexsort((rows["finding_id"], rows["t_ns"]))]), history.wall).rows
    head = recording.head

    def dicts(table: str, rows: np.ndarray) -> list[dict[str, Any]]:
        plain = to_arrow(table, rows, head.boot_id, head.host)
        return list(with_wall(plain, rows["t_ns"], history).to_pylist())

    verdicts, evidence = (
        dicts(table, np.concatenate([TABLES[table].empty(0), *its]))
        for table, its in (
            ("verdict", [state.verdicts for state in found.values()]),
            (
                "evidence",
                [state.evidence[np.argsort(state.evidence["t_ns"], kind="stable")] for state in found.values()],
            ),
        )
    )
    findings = [joined(row, verdicts, evidence) for row in decoded(dicts("finding", rows))]
    return Replayed(findings, correlator.losses(), recording.cut)
