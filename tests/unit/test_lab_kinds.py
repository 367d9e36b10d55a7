"""Kinds of faults: what their declarations take for granted of the workload."""

from __future__ import annotations

import re
from pathlib import Path

from agent.lab import programs as room
from agent.lab.kind import kinds
from agent.lab.kinds.workers import ALLOWED
from agent.lab.program import programs


def test_overload_goes_by_what_the_limiters_allow() -> None:
    there = programs()
    source = (Path(room.__path__[0]) / "goapi_source" / "main.go").read_text()
    (go,) = re.findall(r"rate\.NewLimiter\((\d+), ", source)
    assert {
        "callers": float(go),
        **{name: there[name].settings["limit"] for name in ALLOWED if name != "callers"},
    } == ALLOWED
    assert kinds()["overload"].size.mild > 1 > kinds()["limit_lowered"].size.hard


def test_who_is_starved_by_priority_shares_a_cgroup_with_the_hogs_only() -> None:
    there = programs()
    assert not any(there[name].group for name in kinds()["cpu_hog"].targets)
