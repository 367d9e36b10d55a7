"""The basis of a finding as rows of ``verdict`` and ``evidence``: the causes that were considered, and the evidence for
or against them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from agent.batch import Batch
from agent.common.address import peer_text
from agent.common.sentence import plain
from agent.correlate.catalogue import order_of, symptom_of
from agent.correlate.episode import UNKNOWN, Episode, Evidence, item
from agent.correlate.words import fit, peer, pieces, stored_peer
from agent.tables import TABLES

if TYPE_CHECKING:
    from agent.correlate.finding import Finding

_VERDICT, _EVIDENCE = TABLES["verdict"], TABLES["evidence"]
FOR, AGAINST, TIMELINE = (_EVIDENCE.code("role", name) for name in ("for", "against", "timeline"))
#: A role, the cause that it is about (empty: the symptom), and the evidence.
Piece = tuple[int, str, Evidence]
_MOST = 64  # of a finding
_LAST_NS = 2**62  # times around a jump by a century may be out of range


def changed(finding: Finding, t_ns: int) -> list[Batch]:
    """The finding's verdicts and evidence, each as a whole, if anything in it has changed since the last call."""
    found = []
    shown, finding.dropped_evidence = evidence(finding, t_ns)
    for batch in (verdicts(finding, t_ns), shown):
        as_of = TABLES[batch.table].as_of
        same = batch.rows.copy()
        same[as_of] = 0
        if finding.shown.get(batch.table) != same.tobytes():
            finding.shown[batch.table] = same.tobytes()
            found.append(batch)
    return found


def verdicts(finding: Finding, t_ns: int) -> Batch:
    """The causes that were considered, the finding's own first, then by score, as known at t_ns."""
    considered = finding.considered()
    rows = _VERDICT.empty(len(considered))
    rows["t_ns"], rows["finding_id"] = t_ns, finding.finding_id.encode()
    rows["rank"] = np.arange(1, len(considered) + 1)
    rows["cause"] = [v.cause.encode() for v in considered]
    rows["cause_detail"] = [fit(v.detail, 24) for v in considered]
    rows["score"] = [round(v.score, 2) for v in considered]
    rows["ruled_out"] = [v.score <= 0 and v.checked and v.cause != UNKNOWN for v in considered]
    rows["reason"] = [fit(plain(pieces(v.words)), 256) for v in considered]
    return Batch("verdict", rows)


def evidence(finding: Finding, t_ns: int) -> tuple[Batch, int]:
    """All evidence for and against, and the timeline, as known at t_ns; and the number of pieces left out."""
    found = list(_distinct(_pieces(finding)))
    shown = found[:_MOST]
    rows = _EVIDENCE.empty(len(shown))
    rows["as_of_ns"], rows["finding_id"] = t_ns, finding.finding_id.encode()
    for row, (role, cause, one) in zip(rows, shown, strict=True):
        row["t_ns"], row["end_ns"] = (max(-_LAST_NS, min(t or 0, _LAST_NS)) for t in (one.t_ns, one.end_ns))
        row["role"], row["cause"] = role, cause.encode()
        row["table"], row["column"] = one.table.encode(), one.column.encode()
        row["keys"], row["details"] = _json(_shown(one.keys), 256), _json(one.details, 512)
        row["what"], row["unit"] = fit(one.what, 48), fit(one.unit, 16)
        row["value"] = np.nan if one.value is None else one.value
        row["baseline"] = np.nan if one.baseline is None else one.baseline
        row["object"] = fit(_object(one), 128)
    return Batch("evidence", rows), len(found) - len(shown)


def of_symptom(episode: Episode) -> Evidence:
    """What was wrong, as its own table shows it."""
    table = symptom_of(episode).tables.get(episode.metric, symptom_of(episode).table)
    keys = {**({} if episode.pid is None else {"pid": episode.pid}), **episode.keys}
    return item(
        table,
        episode.symptom,
        episode.value,
        episode.unit,
        column=symptom_of(episode).measured.get(episode.metric),
        baseline=episode.base,
        t_ns=episode.start_ns,
        end_ns=max(episode.start_ns, episode.end_ns),
        keys={name: of for name, of in keys.items() if name in TABLES[table].by_name},
        object=episode.subject,
    )


def _pieces(finding: Finding) -> Iterator[Piece]:
    if finding.steps is not None:
        cause = finding.steps.verdict.cause
        for one in finding.steps.evidence():
            yield (TIMELINE if one.table == "clock_change" else FOR), cause, one
    for episode in sorted(finding.episodes, key=order_of):
        yield TIMELINE, "", of_symptom(episode)
    for verdict in finding.ranked():
        for one in verdict.evidence:
            yield FOR if verdict.score > 0 else AGAINST, verdict.cause, one


def _distinct(found: Iterator[Piece]) -> Iterator[Piece]:
    """Each piece once, even if several episodes have it."""
    seen = set()
    for role, cause, one in found:
        key = cause, one.table, one.column, one.what, str(one.keys), one.object, one.t_ns
        if key not in seen:
            seen.add(key)
            yield role, cause, one


def _shown(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Values as queries show them."""
    return {
        name: (
            peer_text(value)
            if isinstance(value, bytes) and name == "peer"
            else (
                value.decode("utf-8", "backslashreplace")
                if isinstance(value, bytes)
                else stored_peer(value)
                if name == "peer"
                else value
            )
        )
        for name, value in keys.items()
    }


def _json(values: Mapping[str, Any], width: int) -> bytes:
    """As many members as fit; numpy integers become plain ones."""
    kept = dict(values)
    while len(raw := json.dumps(kept, ensure_ascii=False, separators=(",", ":"), default=int).encode()) > width:
        kept.popitem()
    return raw


def _object(one: Evidence) -> str:
    named = (one.object, one.keys.get("limiter_id"), one.keys.get("peer"), one.details.get("comm"))
    found = next((name for name in named if name), f"pid {one.keys['pid']}" if "pid" in one.keys else "")
    return peer(found) if isinstance(found, bytes) else str(found)
