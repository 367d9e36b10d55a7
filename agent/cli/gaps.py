"""What an answer from the store may lack, told on stderr by every verb that reads it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from agent.unjudged import NAME as UNJUDGED

if TYPE_CHECKING:
    from agent.store.query import Session

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
        lost = "an unknown number of" if any(g["count"] is None for g in each) else sum(g["count"] for g in each)
        note(f"gap: {lost} records lost in {stage} ({source}){times}, between {cell('from_ns', each[0]['from_ns'])} and {cell('to_ns', each[-1]['to_ns'])}")


def hides_findings(gaps: Sequence[Gap]) -> bool:
    """Whether something wrong may have gone unseen. What only the exporters lost was judged all the same."""
    return any(gap["stage"] != "export" for gap in gaps)


def unjudged(session: Session) -> list[str]:
    """What the correlator did not look at in the session's window (agent/unjudged.py), as a note. Needs probe_status."""
    where = " AND ".join([*session.window.rows(), f"probe = '{UNJUDGED}'"])
    said = session.run(f"SELECT reason FROM probe_status WHERE {where} ORDER BY {session.order()}").rows
    times = f" (and {len(said) - 1} times more before)" if len(said) > 1 else ""
    return [f"{said[-1][0]}{times}"] if said else []
