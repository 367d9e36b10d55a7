"""A step of the wall clock between two agents on one store, 5 us and undone between two more: a row and a finding each,
from the second.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.kernel.clock_rig import PROLOGUE
from tests.system.agent import Agent


def step(by_ns: int) -> None:
    subprocess.run([sys.executable, "-c", f"{PROLOGUE}assert step('raw_clock_adjtime', {by_ns}) >= 0"], check=True)


@pytest.mark.usefixtures("own_clock")
def test_a_step_while_no_agent_runs_is_found_by_the_next(start: Callable[..., Agent]) -> None:
    agent = start().ready()
    assert agent.some("clock_offset", "true")
    agent.stop()
    step(5_000)
    try:
        second = start(root=agent.root).ready()
        (row,) = second.rows("clock_change", "modes LIKE 'unwatched=%'", enough=1)
        assert (row["kind"], row["via"], row["direction"], row["pid"]) == ("step", "none", "forward", None)
        assert abs(row["size_ns"] - 5_000) <= row["err_ns"]
        (found,) = (f for f in second.json("findings")["rows"] if "while no agent was running" in f["sentence"])
        assert found["cause"] == "clock_step"
        (stored,) = second.json("sql", f"select sentence from finding where finding_id = '{found['finding_id']}'")[
            "rows"
        ]
        assert re.search(
            r" s before 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z, while no agent was running", stored["sentence"]
        )
        second.stop()
    finally:
        step(-5_000)
    third = start(root=agent.root).ready()
    rows = third.rows("clock_change", "modes LIKE 'unwatched=%'", enough=2)
    assert [r["direction"] for r in sorted(rows, key=lambda r: r["t_ns"])] == ["forward", "backward"]
    third.stop()
    fourth = start(root=agent.root).ready()
    assert len(fourth.rows("clock_change", "modes LIKE 'unwatched=%'", enough=3, limit_s=1)) == 2, "nothing moved"
