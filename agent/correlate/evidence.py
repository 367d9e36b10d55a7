"""A finding's evidence as rows of ``evidence``: each piece once, and again only when it has changed."""

from __future__ import annotations

from _blake2 import blake2b  # as in finding.py
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from agent.batch import Batch
from agent.correlate.words import fit
from agent.tables import TABLES

if TYPE_CHECKING:
    from agent.correlate.finding import Finding

_TABLE = TABLES["evidence"]
FOR, AGAINST, TIMELINE, WITHDRAWN = (_TABLE.code("role", name) for name in ("for", "against", "timeline", "withdrawn"))
Entry = Mapping[str, object]
#: A role, the cause that it is about (empty for what is about the symptom), and an entry (see
#: ``agent.correlate.episode.item``).
Piece = tuple[int, str, Entry]
_MOST = 128  # of a finding
_OBJECTS = ("subject", "limiter", "peer", "comm")


def batch(finding: Finding, t_ns: int) -> Batch | None:
    """What is new or has changed since the last time, as known at t_ns; None where nothing has. What does not fit goes
    into ``finding.unfit``.
    """
    pieces: dict[bytes, Piece] = {}
    for role, cause, entry in _pieces(finding):
        key = [
            finding.finding_id,
            cause,
            *(entry.get(name) for name in ("table", "column", "what")),
            _object(entry),
            entry.get("pid"),
            entry.get("t_ns"),
        ]
        its_id = blake2b("|".join(map(str, key)).encode(), digest_size=8).hexdigest().encode()
        pieces.setdefault(its_id, (role, cause, entry))
    stay = {
        its_id for its_id in pieces if its_id in finding.shown and finding.shown[its_id][0] != WITHDRAWN
    }  # whatever came before them since
    chosen = {*stay, *[its_id for its_id in pieces if its_id not in stay][: _MOST - len(stay)]}
    finding.unfit.update(pieces.keys() - chosen)
    now = {its_id: _row(*piece) for its_id, piece in pieces.items() if its_id in chosen}
    gone = {
        its_id: (WITHDRAWN, *row[1:])
        for its_id, row in finding.shown.items()
        if its_id not in now and row[0] != WITHDRAWN
    }
    fresh = {its_id: row for its_id, row in {**now, **gone}.items() if finding.shown.get(its_id) != row}
    if not fresh:
        return None
    rows = _TABLE.empty(len(fresh))
    rows["t_ns"], rows["finding_id"], rows["evidence_id"] = t_ns, finding.finding_id.encode(), list(fresh)
    for name, values in zip(_COLUMNS, zip(*fresh.values(), strict=True), strict=True):
        rows[name] = values
    finding.shown.update(fresh)
    return Batch("evidence", rows)


def _pieces(finding: Finding) -> Iterator[Piece]:
    ranked = finding.ranked()
    if finding.steps is not None:
        yield from (
            (TIMELINE if "t_ns" in e else FOR, finding.steps.verdict.cause, e) for e in finding.steps.evidence()
        )
    for episode in sorted(finding.episodes, key=lambda e: e.order):
        yield TIMELINE, "", finding.of_symptom(episode)
    for verdict in ranked:
        yield from ((FOR if verdict.score > 0 else AGAINST, verdict.cause, entry) for entry in verdict.evidence)


_COLUMNS = (
    "role",
    "cause",
    "table",
    "column",
    "what",
    "value",
    "unit",
    "baseline",
    "start_ns",
    "end_ns",
    "pid",
    "object",
)


def _row(role: int, cause: str, entry: Entry) -> tuple[object, ...]:
    """In the order of ``_COLUMNS``."""

    def number(name: str) -> float | None:
        value = entry.get(name)
        return float(value) if isinstance(value, int | float) else None

    def integer(name: str) -> int:
        value = entry.get(name)
        return value if isinstance(value, int) else -(2**63)

    def words(name: str, width: int) -> bytes:
        return fit(str(entry.get(name, "")), width)

    value, baseline = (np.nan if (v := number(name)) is None else v for name in ("value", "baseline"))
    return (
        role,
        cause.encode(),
        words("table", 24),
        words("column", 24),
        words("what", 48),
        value,
        words("unit", 16),
        baseline,
        integer("t_ns"),
        integer("end_ns"),
        integer("pid"),
        fit(_object(entry), 128),
    )


def _object(entry: Entry) -> str:
    return next((str(entry[name]) for name in _OBJECTS if name in entry), "")
