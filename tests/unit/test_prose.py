"""Files of versions that had words where there are columns now: read as if they had the columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agent.batch import Batch, make
from agent.columns import NULL_I64
from agent.store.frames import Encoder, FrameDecoder, FrameKind, Head
from agent.tables import TABLES

HEAD = Head("b" * 36, "host", "1", 0, 0)


def old(table: str, *left_out: str, **columns: object) -> np.ndarray:
    """Rows as a file without those columns gives them back."""
    today = TABLES[table]
    before = replace(today, columns=tuple(c for c in today.columns if c.name not in left_out))
    rows = make(table, 3, **columns).rows
    stored = np.empty(3, before.dtype)
    for c in before.columns:
        stored[c.name] = rows[c.name]
    encoder = Encoder({table: before})
    parts, _ = encoder.batches([Batch(table, stored)])
    (frame,) = (
        f for f in FrameDecoder().feed(b"".join([Encoder.head(HEAD), *map(bytes, parts)])) if f.kind == FrameKind.ROWS
    )
    return frame.rows


def test_a_poll_that_failed() -> None:
    rows = old(
        "queue_lag",
        "failure",
        status=[b"ok", b"down", b"down"],
        reason=[b"", b"redis x: no answer within 0.5 s", b"redis x: Connection refused"],
    )
    names = TABLES["queue_lag"].by_name["failure"].names
    assert rows["failure"][0] == -1
    assert [names[code] for code in rows["failure"][1:]] == ["no_answer", "other"]


def test_a_step_while_nobody_looked() -> None:
    rows = old("clock_change", "unwatched_ns", modes=[b"unwatched=42.0s", b"+UNSYNC", b"unwatched=odd"])
    assert rows["unwatched_ns"].tolist() == [42 * 10**9, NULL_I64, NULL_I64]


def test_columns_that_a_file_has_stay() -> None:
    assert old("clock_change", "ret", modes=b"unwatched=42.0s", unwatched_ns=7)["unwatched_ns"].tolist() == [7] * 3


@pytest.mark.parametrize("modes", [b"unwatched=infs", b"unwatched=nans", b"unwatched=1e300s", b"unwatched=-1e300s"])
def test_a_span_beyond_all_is_none(modes: bytes) -> None:
    assert old("clock_change", "unwatched_ns", modes=modes)["unwatched_ns"].tolist() == [NULL_I64] * 3
