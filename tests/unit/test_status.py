"""What the agent says about itself, where no whole agent can be made to have it to say."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from agent.batch import Batch
from agent.columns import NULL_I64
from agent.common.faults import IN_A_ROW, Faults
from agent.contracts import Failing
from agent.kernel import bpf
from agent.kernel.kernel_source import KernelSource
from agent.kernel.loaded_families import Family, Loaded
from agent.kernel.settings import ProbeSettings
from agent.kernel.wire_structs import Wire
from agent.posix.supervisor import Supervised
from agent.probes.limiter import PROBE
from agent.service.status import Status, StatusSettings
from agent.tables import TABLES


def test_a_loss_of_unknown_size_is_reported_as_such() -> None:
    loop: Any = SimpleNamespace(
        lost={("kernel", "tcp"): 5, ("intake", "intake"): 2, ("ring", "none"): 0},
        lost_unknown={("intake", "intake"), ("intake", "clock")},
        store=SimpleNamespace(losses=lambda: {"tcp_rtt": 7, "loss": 0}),
    )
    anything: Any = SimpleNamespace()
    status = Status(anything, loop, anything, anything, anything, anything)
    assert [(x["stage"], x["source"], x["count"]) for x in status.losses()] == [
        ("intake", "clock", None),
        ("intake", "intake", None),
        ("kernel", "tcp", 5),
        ("store", "tcp_rtt", 7),
    ]
    assert (
        status.lost()
        == "an unknown number of clock (intake), an unknown number of intake (intake), 5 of tcp (kernel), 7 of tcp_rtt"
        " (store)"
    )


def test_the_uptime_includes_the_start_of_the_agent() -> None:
    anything: Any = SimpleNamespace()
    status = Status(anything, anything, anything, anything, anything, anything)
    status.ready(time.monotonic() - 16)
    assert 16 <= status.ready_s <= status.uptime_s < 60


def test_a_ring_that_is_left_out_is_reported_as_such() -> None:
    """By the parts' own faults; and its family stays degraded whatever else goes well again."""
    family = Family(PROBE, state="attached")
    kernel = KernelSource(Loaded({"limiter": family}, Wire({}), []))
    kernel._owners["limiter_decisions"] = family
    family.problem("sys_exit", "sys_exit: attach", "wait")
    for _ in range(IN_A_ROW):
        kernel._failed("limiter_decisions", IndexError("odd"))
    kernel._failed("other", OSError(5, "no"))
    family.well("sys_exit")
    assert (family.state, family.reason) == (
        "degraded",
        "limiter_decisions: IndexError: odd: left out until the next start",
    )
    assert "report" in family.remedy

    class Queue(Failing):
        def failures(self) -> dict[str, str]:
            return {"redis": "refused"}

    queue, anything = Queue(), cast(Any, SimpleNamespace(failures={"not": "this kind"}))
    loop: Any = SimpleNamespace(sources=[kernel, queue, anything], faults=Faults())
    loop.faults.failed("filter", KeyError("x"))
    reported = {
        row.pop("source"): row for row in Status(anything, loop, anything, anything, anything, anything).sources()
    }
    assert reported == {
        "filter": {"failure": "KeyError: 'x'", "count": 1, "left_out": False},
        "limiter_decisions": {"failure": "IndexError: odd", "count": IN_A_ROW, "left_out": True},
        "other": {"failure": "OSError: [Errno 5] no", "count": 1, "left_out": False},
        "redis": {"failure": "refused", "count": None, "left_out": False},
    }


def test_runs_that_the_kernel_left_out_are_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[Batch] = []
    missed = {3: 0, 4: 0}
    monkeypatch.setattr(bpf, "program_stats", lambda fd: (0, 0, missed[fd]))
    family = SimpleNamespace(programs={"a": 3, "b": 4}, state="attached", reason="", remedy="", plan={"a": 1, "b": 2})
    anything: Any = SimpleNamespace(
        child=Supervised("test", "is tested"),
        take=reported.append,
        families={"tcp": family},
        problem=str,
    )
    anything.store = anything
    settings = StatusSettings(ProbeSettings(syscalls="sampled", unix_sockets=False), "auto", "", "")
    status = Status(settings, anything, anything, anything, anything, anything)
    for second, (a, b) in enumerate([(0, 0), (2, 0), (2, 0), (2, 5)]):
        missed.update({3: a, 4: b})
        status.log_changes(second * 10**10)
    rows = np.concatenate([b.rows for b in reported if b.table == "loss"])
    assert [(p["probe"], p["state"], p["remedy"]) for p in status.probes()[1:]] == [
        ("unix", "off", "unix_sockets: true")
    ]
    stages = TABLES["loss"].by_name["stage"].names
    assert [(stages[r["stage"]], r["source"], r["count"], r["from_ns"], r["to_ns"]) for r in rows] == [
        ("kernel", b"tcp runs", 2, 0, 10**10),
        ("kernel", b"tcp runs", 5, 2 * 10**10, 3 * 10**10),
    ]
    assert NULL_I64 not in rows["t_ns"]
