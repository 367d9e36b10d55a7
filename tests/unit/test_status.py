"""What the agent says about itself, where no whole agent can be made to have it to say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agent.batch import Batch
from agent.columns import NULL_I64
from agent.kernel import bpf
from agent.status import Status
from agent.tables import TABLES


def test_a_loss_of_unknown_size_is_told_as_such() -> None:
    loop: Any = SimpleNamespace(lost={("kernel", "tcp"): 5, ("intake", "intake"): 2, ("ring", "none"): 0}, lost_unknown={("intake", "intake"), ("intake", "clock")},
                                store=SimpleNamespace(losses=lambda: {"tcp_rtt": 7, "loss": 0}))  # fmt: skip
    anything: Any = SimpleNamespace()
    status = Status(anything, loop, anything, anything, anything, anything)
    assert [(x["stage"], x["source"], x["count"]) for x in status.losses()] == [
        ("intake", "clock", None), ("intake", "intake", None), ("kernel", "tcp", 5), ("store", "tcp_rtt", 7)]  # fmt: skip
    assert status.lost() == "an unknown number of clock (intake), an unknown number of intake (intake), 5 of tcp (kernel), 7 of tcp_rtt (store)"


def test_runs_that_the_kernel_left_out_are_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Batch] = []
    missed = {3: 0, 4: 0}
    monkeypatch.setattr(bpf, "program_stats", lambda fd: (0, 0, missed[fd]))
    family = SimpleNamespace(programs={"a": 3, "b": 4}, state="attached", reason="", remedy="", plan={"a": 1, "b": 2})
    anything: Any = SimpleNamespace(alive=True, take=told.append, syscalls="sampled", families={"tcp": family})
    status = Status(anything, anything, anything, anything, anything, anything)
    for second, (a, b) in enumerate([(0, 0), (2, 0), (2, 0), (2, 5)]):
        missed.update({3: a, 4: b})
        status.tell(second * 10**9)
    rows = np.concatenate([b.rows for b in told if b.table == "loss"])
    stages = TABLES["loss"].by_name["stage"].names
    assert [(stages[r["stage"]], r["source"], r["count"], r["from_ns"], r["to_ns"]) for r in rows] == [
        ("kernel", b"tcp runs", 2, 0, 10**9), ("kernel", b"tcp runs", 5, 2 * 10**9, 3 * 10**9)]  # fmt: skip
    assert NULL_I64 not in rows["t_ns"]
