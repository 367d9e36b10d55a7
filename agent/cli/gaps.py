"""What an answer from the store may lack, told on stderr by every verb that reads it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

#: What the correlator left out, by reason (`Correlator.losses`), in words. The rows themselves are stored.
LEFT_OUT = {
    "subjects": "seconds of limiters, queues, brokers or listeners beyond those it watches",
    "pending": "rows that came faster than it takes them",
    "late": "rows that came too late",
    "findings": "findings beyond those it follows",
    "evidence": "rows of evidence that made room for newer ones",
}

Gap = dict[str, Any]


def tell(gaps: Iterable[Gap], notes: Iterable[str], fmt: str) -> None:
    """notes: ``Session.notes``; gaps: ``Session.gaps()``, which a JSON document has as its own member, so that they are told with other formats only."""
    from agent.cli.cells import cell
    from agent.cli.output import note

    for text in notes:
        note(f"note: {text}")
    alike: dict[tuple[str, str, str], list[Gap]] = {}
    for gap in gaps if fmt != "json" else ():
        alike.setdefault((gap["boot_id"], gap["stage"], gap["source"]), []).append(gap)
    for (_, stage, source), each in alike.items():
        times = f" in {len(each)} intervals" if len(each) > 1 else ""
        note(f"gap: {_lost(each, stage, source)}{times}, between {cell('from_ns', each[0]['from_ns'])} and {cell('to_ns', each[-1]['to_ns'])}")


def hides_findings(gaps: Sequence[Gap]) -> bool:
    """Whether something wrong may have gone unseen. What only the exporters lost was judged all the same."""
    return any(gap["stage"] != "export" for gap in gaps)


def _lost(alike: list[Gap], stage: str, source: str) -> str:
    count = "an unknown number of" if any(g["count"] is None for g in alike) else sum(g["count"] for g in alike)
    of, _, reason = (source or "").partition(" ")
    if of == "correlator" and reason in LEFT_OUT:
        return f"{count} not looked at for findings ({LEFT_OUT[reason]})"
    return f"{count} records lost in {stage} ({source})"
