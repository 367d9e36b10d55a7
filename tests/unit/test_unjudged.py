"""What the correlator leaves out becomes rows of loss: when, how many, how often."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from agent.batch import make
from agent.cli import status
from agent.cli.gaps import LEFT_OUT
from agent.correlate.config import CorrelatorConfig
from agent.correlate.correlator import Correlator
from agent.tables import TABLES
from agent.unjudged import REASONS, Unjudged
from tests.unit.correlate_scenarios import T0, S


def told(batches: Any) -> list[tuple[str, int, int, int]]:
    assert all(b.table == "loss" and len(b.rows) == 1 for b in batches)
    return [(r["source"].decode(), int(r["count"]), int(r["from_ns"]), int(r["to_ns"])) for b in batches for r in b.rows]


def test_the_first_at_once_then_one_row_a_minute_until_the_end() -> None:
    counts = Counter(dict.fromkeys([*REASONS, "evidence"], 0))
    source = Unjudged(lambda: dict(counts))
    seen = []
    for tenth in range(2000):
        now = T0 + tenth * S // 10
        if 300 <= tenth < 1200:
            counts["subjects"] += 1
        seen += told(source.drain(now))
    assert [count for _, count, _, _ in seen] == [1, 600, 299]
    assert {name for name, *_ in seen} == {"correlator subjects"}
    assert [(to - T0) // S for *_, to in seen] == [30, 90, 120]  # the last is told at 150
    assert [start for *_, start, _ in seen] == [T0 + 27 * S, T0 + 28 * S, T0 + 88 * S]
    assert all(before[3] >= after[2] for before, after in pairwise(seen))
    counts["late"] += 2
    counts["evidence"] += 9
    assert told(source.finish(T0 + 200 * S, None)) == [("correlator late", 2, T0 + 197 * S, T0 + 200 * S)]
    assert told(source.finish(T0 + 201 * S, None)) == []


def test_each_reason_has_its_minute() -> None:
    counts = dict.fromkeys([*REASONS, "evidence"], 0)
    source = Unjudged(lambda: dict(counts))
    for second, reason in enumerate(REASONS):
        counts[reason] += second + 1
        assert [row[:2] for row in told(source.drain(T0 + second * S))] == [(f"correlator {reason}", second + 1)]


def test_subjects_beyond_the_limit_are_rows_of_loss() -> None:
    correlator = Correlator(CorrelatorConfig(subjects=8))
    source = Unjudged(correlator.losses)
    correlator.feed(make("limiter_decision", 20, t_ns=T0 + np.arange(20), pid=np.arange(20), limiter_id=b"a", duration_ns=1))
    correlator.advance(T0 + 2 * S)
    (batch,) = source.drain(T0 + 3 * S)
    row = batch.rows[0]
    assert (row["source"], row["count"], TABLES["loss"].by_name["stage"].names[row["stage"]]) == (b"correlator subjects", 12, "intake")
    assert row["from_ns"] <= T0 <= row["to_ns"] == row["t_ns"]


def test_every_reason_has_words() -> None:
    assert set(Correlator().losses()) == set(LEFT_OUT) == {*REASONS, "evidence"}


def test_status_tells_people(capsys: pytest.CaptureFixture[str]) -> None:
    dropped = dict.fromkeys([*REASONS, "evidence"], 0)
    document: dict[str, Any] = {
        "pid": 1, "uptime_s": 1.0, "ready_s": 1.0, "cpu_s": 1.0, "processes": [], "probes": [], "helper": "running", "sources": [], "time_daemons": [],
        "rows": {}, "correlator_dropped": dropped, "loss": [{"stage": "intake", "source": "correlator subjects", "count": 300}], "clock": {}, "store": {}, "export": {},
    }  # fmt: skip
    status._human(document)
    assert "correlator left out  nothing\n" in capsys.readouterr().out
    dropped.update(subjects=512, late=3)
    status._human(document)
    said = capsys.readouterr().out
    assert "correlator left out  512 seconds of limiters, queues, brokers or listeners" in said and "; 3 rows that came too late\n" in said
    assert "lost  nothing\n" in said
