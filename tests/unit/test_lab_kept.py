"""Kept sessions of the laboratory, replayed: the diagnosis must not fall behind what it was. Made by ``python -m
tests.lab.keep``. A replay gives the same findings each time, so the floor is today's score with nothing taken off.
"""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from agent.errors import AgentError
from agent.lab.judge import Reported
from agent.lab.kind import kinds
from agent.lab.plan import HELD_BACK
from agent.lab.replay import reported, rules
from agent.lab.score import Score
from agent.lab.truth import RECORDING, Truth
from tests.lab.ablate import its_kinds, right_by_kind
from tests.lab.keep import LabSession
from tests.lab.small import unpacked

KEPT = Path(__file__).parent / "data" / "lab"
FLOOR: dict[str, Any] = json.loads((KEPT / "floor.json").read_text())


def one(place: Path, without: tuple[str, ...]) -> tuple[Truth, list[Reported]]:
    return Truth.read(place), reported(place / RECORDING, without)


@cache
def replayed(without: tuple[str, ...] = ()) -> list[tuple[Truth, list[Reported]]]:
    with TemporaryDirectory() as room, ProcessPoolExecutor(mp_context=get_context("forkserver")) as pool:
        return list(pool.map(one, unpacked(KEPT, Path(room)), repeat(without)))


def kept() -> list[tuple[Truth, list[Reported]]]:
    return replayed()


@cache
def figures() -> dict[str, Any]:
    score = Score()
    for truth, findings in kept():
        score.add(truth, findings)
    return score.to_json()


@pytest.mark.parametrize("figure", ["detected", "top1_cause", "top1", "top3_cause"])
def test_no_figure_falls(figure: str) -> None:
    assert figures()["all"][figure] >= FLOOR["all"][figure]


@pytest.mark.parametrize("figure", ["wrong_causes_per_hour", "wrong_symptoms_per_hour"])
def test_no_more_is_wrong(figure: str) -> None:
    assert figures()[figure] <= FLOOR[figure]


def test_what_is_kept_is_whole() -> None:
    assert figures()["all"]["faults"] == FLOOR["all"]["faults"]
    assert {fault.kind for truth, _ in kept() for fault in truth.faults} <= set(kinds())


@pytest.mark.parametrize("kind", ["consumers_stopped", "consumer_killed"])
@pytest.mark.parametrize("system", ["celery", "kafka", "postgresql", "rabbitmq"])
def test_the_cause_is_right_where_consumers_end_or_stop(system: str, kind: str) -> None:
    assert right_by_kind(kept())[f"{system}_{kind}"]


@pytest.mark.parametrize("rule", ["broker_slow", "network_loss", "syscall"])
def test_without_a_rule_its_kinds_suffer_and_no_others(rule: str) -> None:
    before, after = right_by_kind(kept()), right_by_kind(replayed((rule,)))
    lost = set(before - after)
    assert lost or not its_kinds(rule) & set(before)
    assert lost <= its_kinds(rule)


def test_a_rule_that_there_is_not_cannot_be_left_out() -> None:
    assert "broker_slow" in rules() and "unknown" not in rules()
    with pytest.raises(AgentError, match="no rule"):
        reported(KEPT, ["gremlins"])


def test_faults_that_were_not_there_lower_the_score() -> None:
    """Their effects are kept in the truth, and what was found then is what a quiet time holds: nothing."""
    before, after = Score(), Score()
    for truth, findings in kept():
        before.add(truth, findings)
        after.add(truth, [])
    assert after.to_json()["all"]["faults"] == before.to_json()["all"]["faults"]
    assert after.to_json()["all"]["detected"] == 0 < before.to_json()["all"]["detected"]


def test_held_back_seeds_are_not_kept(tmp_path: Path) -> None:
    truth, _ = kept()[0]
    replace(truth, seed=HELD_BACK).write(tmp_path)
    with pytest.raises(SystemExit, match="never used for tuning"):
        LabSession(tmp_path)
