"""The table of clock events (guest_clock.py) on the kernels of TICKSCOPE_TEST_CLOCK_KERNELS, else
TICKSCOPE_TEST_KERNELS: real steps, slews and leap seconds, a real chronyd, a machine that is stopped; last, one that is
suspended to RAM (guest_suspend.py).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import product
from typing import Any

import pytest

from agent.columns import NULL_I64
from tests.vm import suite

NAMES = os.environ.get("TICKSCOPE_TEST_CLOCK_KERNELS", os.environ.get("TICKSCOPE_TEST_KERNELS", "5.10 6.1")).split()
#: Which of the table's events: pytest's -k. Empty for all of them.
CHOSEN = os.environ.get("TICKSCOPE_TEST_CLOCK_EVENTS", "")
LIMIT_S = 1800 + float(os.environ.get("TICKSCOPE_TEST_QUIET_S", "20"))
#: The two halves of the table, as long as each other, each in a machine of its own: it waits for more than half of its
#: time. The second has the leap seconds, and ends with the suspend.
_FIRST = "(test_event[ and not leap) or test_chronyd or test_a_stopped_vm"
HALVES = (f"{_FIRST} or test_stated_errors", f"not ({_FIRST})")
Booted = dict[tuple[str, str], Future[suite.Run]]


def begin(pool: ThreadPoolExecutor, folders: pytest.TempPathFactory) -> Booted:
    env, begun = {"PATH": suite.with_chronyd()}, {}
    for name, half in product(NAMES, HALVES):
        tests = ["tests/vm/guest_clock.py", "-k", f"({half}) and ({CHOSEN})" if CHOSEN else half]
        last = f'{shlex.join([sys.executable, "-m", "tests.vm.guest_suspend"])} "$status"' if half == HALVES[1] else ""
        begun[name, half] = pool.submit(
            suite.run, name, tests, folders.mktemp(name), limit_s=LIMIT_S, last=last, env=env
        )
    return begun


@pytest.fixture
def booted(machines: dict[str, Any]) -> Booted:
    found: Booted = machines["test_clock"]
    return found


@pytest.mark.parametrize("half", HALVES, ids=("events", "the others"))
@pytest.mark.parametrize("kernel", NAMES)
def test_every_event_is_found_once_with_actor_and_size(booted: Booted, kernel: str, half: str) -> None:
    done = booted[kernel, half].result()
    failed = [f"{r.test}\n{r.detail}" for r in done.results if r.outcome != "passed"]
    assert failed == [], "\n".join(failed)
    assert done.outcome.status == 0, done.outcome.output[-4000:] + done.outcome.console
    assert done.results


@pytest.mark.parametrize("kernel", NAMES)
def test_a_suspend_is_reported_once_with_its_length(booted: Booted, kernel: str) -> None:
    outcome = booted[kernel, HALVES[1]].result().outcome
    found = re.search(r'^\{"before": .*', outcome.output, re.MULTILINE)
    assert found, outcome.output[-4000:] + outcome.console
    seen = json.loads(found[0])
    before, after = seen["before"], seen["after"]
    slept_ns = after["boot_mono_ns"] - before["boot_mono_ns"]
    ran_ns = after["t_ns"] - before["t_ns"] - slept_ns
    assert (
        abs(slept_ns + ran_ns - (after["rtc_s"] - before["rtc_s"]) * 10**9) < 3 * 10**9
    )  # the clock that went on, in whole seconds
    assert slept_ns > 2 * 10**9
    assert [(r["kind"], r["pid"]) for r in seen["rows"]] == [("suspend", NULL_I64)]
    (row,) = seen["rows"]
    assert abs(row["size_ns"] - slept_ns) <= row["err_ns"] + before["err_ns"] + after["err_ns"]
    assert row["real_mono_after_ns"] - row["real_mono_before_ns"] == row["size_ns"]
    assert seen["notices"] == []  # the wall clock did not jump
