"""A store on a file system that does not answer: only what is written waits, what that costs is reported, and an agent
that ends or starts meanwhile says so.
"""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.service.control import ask
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.system.agent import Agent
from tests.system.frozen import FrozenDisk
from tests.system.test_full_disk import Flood, lost, memory

#: What waits, what came meanwhile and is not in the backlog yet, and copies.
_GROWTH_BYTES = 64 << 20
#: What waits for the file system waits as long as it is frozen; a busy machine takes its time, too.
_HELD_UP_S = 4 * PATIENCE


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FrozenDisk]:
    disk = FrozenDisk(tmp_path)
    yield disk
    disk.close()


def slowest_s(work: Callable[[], object], times: int = 10) -> float:
    slowest = 0.0
    for _ in range(times):
        begun = time.monotonic()
        work()
        slowest = max(slowest, time.monotonic() - begun)
    return slowest


def test_a_frozen_file_system_holds_up_the_store_only(start: Callable[..., Agent], disk: FrozenDisk) -> None:
    port = free_port()
    agent = start(env={"TICKSCOPE_STORE": str(disk.path / "store")}, config=f"prometheus: 127.0.0.1:{port}\n").ready()
    before = memory(agent)
    with Flood(agent) as flood:
        agent.until(lambda: agent.json("query", "limiter_decision", "--limit", "1")["rows"])
        disk.freeze()
        store = agent.until(lambda: (s := agent.status()["store"])["dropped_rows"] and s)
        assert store["state"] == "degraded"
        assert "the file system does not answer" in store["reason"] and "stalled for " in store["reason"]
        assert "fsfreeze" in store["remedy"]
        assert slowest_s(lambda: ask(str(agent.run_dir), "status")) < _HELD_UP_S
        page = f"http://127.0.0.1:{port}/metrics"
        assert slowest_s(lambda: urllib.request.urlopen(page, timeout=2 * _HELD_UP_S).read()) < _HELD_UP_S
        assert agent.json("query", "limiter_decision", "--limit", "1")["rows"], "what was stored before can be read"
        assert memory(agent) < before + _GROWTH_BYTES
        agent.until(
            lambda: (
                "tickscope: store: stalled: the file system does not answer; try: if the file system is frozen, thaw it"
                in agent.log()
            )
        )
        disk.thaw()
        agent.until(lambda: agent.status()["store"]["state"] == "ok")
    time.sleep(1)
    missing = lost(agent, "limiter_decision")
    assert missing > 0
    assert agent.json("sql", "SELECT count(*) n FROM limiter_decision")["rows"][0]["n"] + missing == flood.sent
    assert {"stage": "store", "source": "limiter_decision", "count": missing} in agent.status()["loss"]
    assert agent.stop() == 130


def test_an_agent_that_ends_or_starts_meanwhile_reports_what_it_waits_for(
    start: Callable[..., Agent], disk: FrozenDisk
) -> None:
    agent = start(env={"TICKSCOPE_STORE": str(disk.path / "store")}).ready()
    disk.freeze()
    os.kill(agent.process.pid, 2)
    second = start(env={"TICKSCOPE_STORE": str(disk.path / "store")})
    assert second.process.wait(20 * PATIENCE) == 4
    assert "does not answer" in second.log() and "fsfreeze" in second.log()
    agent.until(lambda: "this process ends when the file system answers" in agent.log())
    agent.until(lambda: not (agent.run_dir / "control.sock").exists())
    assert agent.process.poll() is None
    disk.thaw()
    assert agent.process.wait(10 * PATIENCE) == 4
    third = start(env={"TICKSCOPE_STORE": str(disk.path / "store")}).ready()
    assert third.some("loss", "stage = 'store' AND source = 'agent'")
    assert third.stop() == 130
