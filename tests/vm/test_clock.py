"""The table of clock events (guest_clock.py) on the kernels of TICKSCOPE_TEST_KERNELS: real steps, slews and leap seconds, and a machine that is stopped."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.vm import suite
from tests.vm.test_kernels import NAMES

#: Which of the table's events: pytest's -k. Empty for all of them.
CHOSEN = os.environ.get("TICKSCOPE_TEST_CLOCK_EVENTS", "")
LIMIT_S = 1800 + float(os.environ.get("TICKSCOPE_TEST_QUIET_S", "20"))


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Future[suite.Run]]:
    """All at once, as many as there are processors."""
    pool = ThreadPoolExecutor(suite.jobs())
    tests = ["tests/vm/guest_clock.py", *(["-k", CHOSEN] if CHOSEN else [])]
    return {name: pool.submit(suite.run, name, tests, tmp_path_factory.mktemp(name), limit_s=LIMIT_S) for name in NAMES}


@pytest.mark.parametrize("kernel", NAMES)
def test_every_event_is_found_once_with_actor_and_size(booted: dict[str, Future[suite.Run]], kernel: str) -> None:
    done = booted[kernel].result()
    failed = [f"{r.test}\n{r.detail}" for r in done.results if r.outcome != "passed"]
    assert failed == [], "\n".join(failed)
    assert done.outcome.status == 0, done.outcome.output[-4000:] + done.outcome.console
    assert done.results
