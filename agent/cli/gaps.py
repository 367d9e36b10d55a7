"""Warnings about gaps in the store, printed on stderr by every verb that reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from agent.service.unevaluated import NAME as UNEVALUATED

if TYPE_CHECKING:
    from agent.ask.row_source import RowSource

Gap = dict[str, Any]


def report_gaps(gaps: Iterable[Gap], notes: Iterable[str], fmt: str) -> None:
    """Prints notes and gaps. notes: ``Source.notes``. gaps: ``Source.gaps()``; JSON documents have them as a member, so
    they are printed for the other formats only.
    """
    from agent.cli.output import note

    for text in notes:
        note(f"note: {text}")
    for text in texts(gaps) if fmt != "json" else ():
        note(f"gap: {text}")


def texts(gaps: Iterable[Gap]) -> Iterator[str]:
    """One text for the gaps of each stage and source."""
    alike: dict[tuple[str, str, str], list[Gap]] = {}
    for gap in gaps:
        alike.setdefault((gap["boot_id"], gap["stage"], gap["source"]), []).append(gap)
    for (_, stage, source), each in alike.items():
        times = f" in {len(each)} intervals" if len(each) > 1 else ""
        known = [g["count"] for g in each if g["count"] is not None]
        lost = sum(known) if len(known) == len(each) else "an unknown number of"
        records = "record" if lost == 1 else "records"
        start, end = _when(each[0], "from"), _when(each[-1], "to")
        when = f"at {end}" if start == end else f"between {start} and {end}"
        here = "; the store has them" if stage == "export" else ""
        yield f"{lost} {records} lost in {stage} ({source}){times}, {when}{here}"


def _when(gap: Gap, end: str) -> str:
    """One end of the gap as wall time, or as CLOCK_BOOTTIME if the wall clock at that time is unknown."""
    from agent.cli.cells import cell

    return (
        cell("wall_ns", gap[f"{end}_wall_ns"]) if gap[f"{end}_wall_ns"] is not None else cell("t_ns", gap[f"{end}_ns"])
    )


def hides_findings(gaps: Sequence[Gap]) -> bool:
    """Whether the gaps may hide a finding. Rows that only the exporters lost were evaluated."""
    return any(gap["stage"] != "export" for gap in gaps)


def unevaluated(source: RowSource) -> list[str]:
    """A note about what the correlator did not evaluate in the source's window (agent/service/unevaluated.py). Needs
    probe_status.
    """
    from agent.ask.question import Question, Where

    output = [
        row["reason"] for row in source.rows(Question("probe_status", ("reason",), (Where("probe", "=", UNEVALUATED),)))
    ]
    times = f" (earlier reports: {len(output) - 1})" if len(output) > 1 else ""
    return [f"{output[-1]}{times}"] if output else []
