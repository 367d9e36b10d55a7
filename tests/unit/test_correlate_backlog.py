"""What comes at once after a stall had piled up: it is the stall's consequence, and no load."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agent.correlate.series import Series
from tests.unit.correlate_scenarios import APP_PID, Host, latest, run
from tests.unit.test_correlate_processes import event

UNTIL = 70


def burst(rate: float, seconds: float, seed: int = 3) -> Host:
    """A limiter decides 50 times a second; from 30 to 35 not at all, and then at that rate, with refusals."""
    host = Host(seed)
    host.decisions(0, 30, limit_per_s=60.0)
    host.decisions(35, 35 + seconds, rate=rate, refused=0.6, limit_per_s=60.0)
    host.decisions(35 + seconds, UNTIL, limit_per_s=60.0)
    return host


def reported(host: Host) -> list[dict[str, Any]]:
    return latest(run(host, UNTIL))


def test_what_piled_up_while_the_process_stood_still_is_part_of_that() -> None:
    host = burst(150, 3)
    host.rtt(0, 30)
    host.rtt(35, UNTIL)
    event(host, "stopped", 30, pid=APP_PID, comm=b"python3", signal=19)
    event(host, "continued", 35, pid=APP_PID, comm=b"python3", signal=18)
    (found,) = reported(host)
    assert found["cause"] == "process_stopped"
    assert "refusals" in {entry["what"] for entry in found["evidence"]}


def test_after_a_pause_that_nothing_explains_it_is_no_load_either() -> None:
    found = [f for f in reported(burst(150, 3)) if f["symptom"] == "refusals"]
    assert "load" not in {f["cause"] for f in found}
    assert any("had piled up before" in entry["words"] for f in found for entry in f["ruled_out"])


@pytest.mark.parametrize(("rate", "seconds"), [(400, 3), (150, 12)])
def test_more_than_what_was_missing_is_load(rate: float, seconds: float) -> None:
    causes = {f["cause"] for f in reported(burst(rate, seconds)) if f["symptom"] == "refusals"}
    assert causes == {"load"}


def test_load_without_a_pause_before_it_stays_load() -> None:
    host = Host(4)
    host.decisions(0, 30, limit_per_s=60.0)
    host.decisions(30, 34, rate=150, refused=0.6, limit_per_s=60.0)
    host.decisions(34, UNTIL, limit_per_s=60.0)
    assert [f["cause"] for f in reported(host)] == ["load"]


def test_what_was_missing_and_what_came_instead() -> None:
    series, slot = Series(("n",), 8), np.array([0])
    for second, n in enumerate([np.nan] * 3 + [10.0] * 20 + [0.0, np.nan, 2.0] + [25.0, 30.0]):
        series.begin(second)
        series.slot(("shop",), second)
        series.put(second, slot, n=np.array([n]))
    assert series.deficit("n", 0, second, 2, 10.0) == (28.0, 35.0)
    assert series.deficit("n", 0, second - 5, 2, 10.0) == (0.0, 0.0)
