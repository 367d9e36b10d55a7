"""Findings' sentences with times in UTC, for readers of stored rows: SQL, files, recordings."""

from __future__ import annotations

from agent.batch import Batch
from agent.common.copies import copied
from agent.common.sentence import ToWall, pieces, text_of


def in_utc(batch: Batch, to_wall: ToWall) -> Batch:
    """The batch with its sentences in UTC; its rows are copied if it has sentences. They fit: the correlator leaves
    room for the longer times.
    """
    if batch.table != "finding":
        return batch
    rows = copied(batch.rows)
    rows["sentence"] = [
        text_of(pieces(row["sentence_parts"], row["sentence"]), to_wall, utc=True).encode() for row in rows
    ]
    return Batch(batch.table, rows)
