"""Rows that findings name as their evidence: their spans join the trace of the finding. Pure; the caller locks."""

from __future__ import annotations

import json
from collections import Counter
from typing import NamedTuple

import numpy as np

from agent.columns import Column
from agent.common.address import peer_of
from agent.common.fairness import UpperBound
from agent.common.recent import Recent
from agent.tables import TABLES

#: Findings whose evidence is kept, and spans of one table that join the trace of one finding.
_FINDINGS, _MOST_SPANS = 64, 64
#: An open finding goes on, and its evidence comes when it changes. Its times are whole seconds.
_SLACK_NS = 2_000_000_000
_ID = TABLES["evidence"].by_name["finding_id"].dtype
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "metrics",
        "spans of evidence of one kind in the trace of one finding",
        _MOST_SPANS,
        "further operations have traces of their own, if they are slow or failed",
        "-",
    ),
)
_AGAINST = TABLES["evidence"].code("role", "against")


class _Piece(NamedTuple):
    """keys: columns and their stored values, of the rows between from_ns and to_ns (CLOCK_BOOTTIME)."""

    table: str
    from_ns: int
    to_ns: int
    keys: tuple[tuple[str, object], ...]


class FindingEvidence:
    """The evidence of recent findings, by finding id."""

    def __init__(self) -> None:
        self._pieces: Recent[bytes, list[_Piece]] = Recent(_FINDINGS)
        self._spans: Recent[bytes, Counter[str]] = Recent(_FINDINGS)  # by table

    def put(self, rows: np.ndarray) -> None:
        """All evidence of one finding as it is now, in place of what was known before."""
        pieces = [_piece(row) for row in rows if row["role"] != _AGAINST]
        finding_id = bytes(rows["finding_id"][0])
        self._pieces[finding_id] = [one for one in pieces if one is not None]
        self._spans[finding_id] = self._spans.get(finding_id, Counter())

    def findings(self, table: str, rows: np.ndarray) -> np.ndarray:
        """The id of the finding that each row is evidence of, the newest if there are several; empty if there is none,
        or if the finding's trace has no room for more of the table. Shape (n,) S32.
        """
        found = np.zeros(len(rows), _ID)
        if not len(rows):
            return found
        first, last = rows["t_ns"].min(), rows["t_ns"].max()
        for finding_id, pieces in self._pieces.items():
            room, wanted = _MOST_SPANS - self._spans[finding_id][table], np.zeros(len(rows), np.bool_)
            for one in pieces if room > 0 else ():
                if one.table == table and one.from_ns <= last and one.to_ns >= first:
                    wanted |= _matching(rows, one)
            found[np.flatnonzero(wanted)[: max(room, 0)]] = finding_id
        return found

    def joined(self, table: str, findings: np.ndarray) -> None:
        """Counts spans of a table that go out in the traces of these findings."""
        for finding_id, count in zip(*np.unique(findings[findings != b""], return_counts=True), strict=True):
            if finding_id in self._spans:
                self._spans[finding_id][table] += int(count)


def _piece(row: np.void) -> _Piece | None:
    """None if the evidence is no rows that this version knows."""
    table = TABLES.get(row["table"].decode())
    if table is None:
        return None
    try:
        keys = tuple((name, _stored(table.by_name[name], value)) for name, value in json.loads(row["keys"]).items())
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
    return _Piece(table.name, int(row["t_ns"]) - _SLACK_NS, int(row["end_ns"]) + _SLACK_NS, keys)


def _stored(column: Column, shown: object) -> object:
    """The stored value of one that queries show. Raises ValueError or TypeError if there is none."""
    if column.kind == "peer":
        return np.frombuffer(peer_of(str(shown)), column.dtype)
    if column.kind == "enum":
        return column.code(str(shown))
    if column.kind == "str":
        return str(shown).encode()
    if column.kind in ("i64", "bool") and isinstance(shown, int):
        return int(shown)
    raise TypeError(column.kind)


def _matching(rows: np.ndarray, piece: _Piece) -> np.ndarray:
    wanted: np.ndarray = (rows["t_ns"] >= piece.from_ns) & (rows["t_ns"] <= piece.to_ns)
    for name, value in piece.keys:
        if not wanted.any():
            break
        wanted &= rows[name] == value
    return wanted
