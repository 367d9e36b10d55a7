"""What fails in the middle of judging or telling costs no finding, and is counted for as long as it lasts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agent.batch import make
from agent.correlate import evidence
from agent.correlate.catalogue import causes, symptoms
from agent.correlate.correlator import Correlator
from agent.correlate.daemons import DaemonWatch
from agent.correlate.guard import IN_A_ROW, Guard
from agent.correlate.steps import Jumping
from tests.unit.correlate_scenarios import T0, UNTIL, S, broker_slow, clock_step, code, cpu, latest


def reported(correlator: Correlator, host: Any) -> list[Any]:
    for batch in host.made:
        correlator.feed(batch)
    return [b for second in range(UNTIL + 20) for b in correlator.advance(T0 + second * S)]


def test_a_symptom_that_fails_after_it_opened_an_episode_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = symptoms()["decision_latency"]

    def judge(watch: Any, second: Any) -> None:
        assert declared.judge is not None
        before = set(watch.active)
        declared.judge(watch, second)
        if watch.active.keys() - before:
            raise ZeroDivisionError("behind it")

    (sound,) = latest(reported(Correlator(), broker_slow()))
    monkeypatch.setitem(symptoms(), declared.name, replace(declared, judge=judge))
    correlator = Correlator()
    assert latest(reported(correlator, broker_slow())) == [sound]
    assert correlator.losses()["rules"] == 1


def test_a_comparison_that_could_not_be_described_is_reported_when_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    describe, calls = DaemonWatch.describe, []

    def fails_once(watch: DaemonWatch, symptom: str, slot: int) -> Any:
        calls.append(slot)
        if len(calls) == 1:
            raise KeyError(slot)
        return describe(watch, symptom, slot)

    monkeypatch.setattr(DaemonWatch, "describe", fails_once)
    correlator = Correlator()
    correlator.feed(
        make(
            "clock_daemon",
            2,
            t_ns=T0 + np.array([S, 3 * S]),
            daemon=b"chrony",
            kind=code("clock_daemon", "kind", "check"),
            state=code("clock_daemon", "state", "disagree"),
            source=b"raw",
            offset_ns=S,
            distance_ns=1000,
        )
    )
    (found,) = latest([b for second in range(10) for b in correlator.advance(T0 + second * S)])
    assert found["symptom"] == "clock_disagreement"


def fails(*_: object) -> Any:
    raise ZeroDivisionError("of this rule")


def test_a_finding_whose_words_fail_is_reported_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    (sound,) = latest(reported(Correlator(), broker_slow()))
    monkeypatch.setitem(symptoms(), "decision_latency", replace(symptoms()["decision_latency"], clause=fails))
    correlator = Correlator()
    made = reported(correlator, broker_slow())
    (found,) = latest(made)
    same = ("finding_id", "state", "symptom", "subject", "cause", "confidence", "start_ns", "end_ns")
    assert [found[name] for name in same] == [sound[name] for name in same]
    assert str(found["sentence"]).startswith(
        f"Decisions of a limiter take far longer than usual: {found['subject']}, from boot+5030.0"
    )
    assert "cause: broker slow" in str(found["sentence"])
    assert any(batch.table == "evidence" for batch in made)
    assert correlator.guard.counts["words of decision_latency"] == sum(batch.table == "finding" for batch in made)


def test_a_finding_whose_evidence_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    (sound,) = latest(reported(Correlator(), broker_slow()))
    monkeypatch.setattr(evidence, "changed", fails)
    (found,) = latest(reported(Correlator(), broker_slow()))
    assert found == {**sound, "causes": [], "ruled_out": [], "not_checked": [], "evidence": []}


def test_a_jump_is_found_though_the_least_one_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    cause = causes()["clock_step"]
    monkeypatch.setitem(causes(), cause.name, replace(cause, jumps=Jumping("step", least_ns=fails)))
    correlator = Correlator()
    (found,) = latest(reported(correlator, clock_step()))
    assert found["symptom"] == "clock_jump"
    assert correlator.losses()["rules"] == 1


def test_a_rule_that_is_left_out_is_counted_for_as_long_as_it_is() -> None:
    guard = Guard()
    seen = []
    for _ in range(IN_A_ROW + 3):
        guard.attempt("rule", fails, otherwise=None)
        seen.append(guard.missed())
    assert seen == list(range(1, IN_A_ROW + 4))
    assert guard.counts["rule"] == IN_A_ROW


def test_what_fails_of_a_cause_does_not_cost_its_other_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(causes(), "cpu", replace(causes()["cpu"], still_active=fails))
    correlator = Correlator()
    (found,) = latest(reported(correlator, cpu()))
    assert found["cause"] == "cpu"
    assert set(correlator.guard.counts) == {"cause cpu lasts"}
    assert not correlator.guard.out("cause cpu of decision_latency")
