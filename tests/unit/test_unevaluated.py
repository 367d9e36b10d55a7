"""What the correlator leaves out becomes rows of probe_status: when, how many, how often."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from agent.batch import make
from agent.cli import status
from agent.correlate.correlator import Correlator
from agent.correlate.thresholds import CorrelatorConfig
from agent.service.unevaluated import REASONS, Unevaluated
from agent.tables import TABLES
from tests.unit.correlate_scenarios import T0, S


def reported(batches: Any) -> list[str]:
    assert all(b.table == "probe_status" and b.rows["probe"].tolist() == [b"correlator"] for b in batches)
    return [b.rows["reason"][0].decode().removeprefix("not evaluated for findings: ") for b in batches]


def test_the_first_at_once_then_one_row_a_minute_until_the_end() -> None:
    counts = dict.fromkeys([*REASONS, "evidence"], 0)
    source = Unevaluated(lambda: dict(counts))
    seen = []
    for tenth in range(2000):
        if 300 <= tenth < 1200:
            counts["subjects"] += 1
        seen += [(tenth // 10, text) for text in reported(source.drain(T0 + tenth * S // 10))]
    words = REASONS["subjects"]
    assert seen == [(30, f"1 {words}"), (90, f"600 {words}"), (150, f"299 {words}")]
    counts["late"] += 2
    counts["evidence"] += 9
    assert reported(source.finish(T0 + 200 * S, wait=time.sleep)) == [f"2 {REASONS['late']}"]
    assert reported(source.finish(T0 + 201 * S, wait=time.sleep)) == []


def test_all_reasons_at_once_fit_the_row() -> None:
    counts = dict.fromkeys(REASONS, 12_345)
    (text,) = reported(Unevaluated(lambda: counts).drain(T0))
    assert text == ", ".join(f"12345 {words}" for words in REASONS.values())


def test_subjects_beyond_the_limit_are_reported() -> None:
    correlator = Correlator(CorrelatorConfig(subjects=8))
    source = Unevaluated(lambda: {**correlator.losses(), "faults": 0})
    correlator.feed(
        make("limiter_decision", 20, t_ns=T0 + np.arange(20), pid=1 + np.arange(20), limiter_id=b"a", duration_ns=1)
    )
    correlator.advance(T0 + 2 * S)
    (batch,) = source.drain(T0 + 3 * S)
    assert reported([batch]) == [f"24 {REASONS['subjects']}"]  # limiters, and their processes
    assert TABLES["probe_status"].by_name["state"].names[batch.rows["state"][0]] == "degraded"


def test_every_reason_has_words() -> None:
    assert {*Correlator().losses(), "faults"} == {*REASONS, "evidence"}


def test_status_reports_people(capsys: pytest.CaptureFixture[str]) -> None:
    dropped = dict.fromkeys([*REASONS, "evidence"], 0) | {"evidence": 7}
    document: dict[str, Any] = {
        "pid": 1,
        "uptime_s": 1.0,
        "ready_s": 1.0,
        "cpu_s": 1.0,
        "processes": [],
        "probes": [],
        "programs": [],
        "helper": "running",
        "sources": [],
        "time_daemons": [],
        "rows": {},
        "correlator_dropped": dropped,
        "loss": [],
        "clock": {},
        "store": {},
        "export": {},
    }
    status._human(document)
    assert "not evaluated for findings  nothing\n" in capsys.readouterr().out
    dropped.update(subjects=512, late=3)
    status._human(document)
    output = capsys.readouterr().out
    assert (
        "not evaluated for findings  512 seconds of limiters, queues, brokers, listeners or peers" in output
        and "; 3 late rows\n" in output
    )
