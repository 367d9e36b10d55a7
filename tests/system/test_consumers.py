"""A real queue that falls behind: the finding names what its consumer did in place of taking the next message."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.common.clocks import boot_ns
from tests.servers.test_redis_streams import Redis
from tests.system.agent import Agent

WORKER = Path(__file__).parent / "programs" / "worker.py"
#: Until it is known how the consumer spends its time, and how long a fault lasts.
USUAL_S, FAULT_S, PER_S = 25, 7, 10
HOLDS = "import fcntl, sys, time; file = open(sys.argv[1], 'w'); fcntl.flock(file, 2); time.sleep(float(sys.argv[2]))"


class Queue:
    """A stream, its consumer, and who adds messages to it."""

    def __init__(self, server: Redis, folder: Path) -> None:
        self.lock = folder / "lock"
        self.server, self._ended = server, threading.Event()
        self.worker = subprocess.Popen([sys.executable, str(WORKER), str(server.port), "orders", str(self.lock)])
        self._adds = threading.Thread(target=self._add)
        self._adds.start()

    def _add(self) -> None:
        while not self._ended.wait(1 / PER_S):
            self.server.do("XADD", "orders", "*", "n", 1)

    def end(self) -> None:
        self._ended.set()
        self._adds.join()
        self.worker.kill()
        self.worker.wait()


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Queue, Agent]]:
    folder = tmp_path_factory.mktemp("consumers")
    with Redis(folder) as server:
        one = Queue(server, folder)
        agent = Agent(folder, config=f"prometheus: ''\nredis:\n  - url: {server.url}\n")
        try:
            agent.ready()
            time.sleep(USUAL_S)
            yield one, agent
        finally:
            agent.stop()
            one.end()


def signalled(number: signal.Signals) -> Callable[[Queue], int]:
    def does(one: Queue) -> int:
        os.kill(one.worker.pid, number)
        time.sleep(FAULT_S)
        os.kill(one.worker.pid, number)
        return one.worker.pid

    return does


def lags(agent: Agent, since_ns: int) -> list[dict[str, Any]]:
    rows = agent.json("findings")["rows"]
    return [row for row in rows if row["end_ns"] > since_ns and row["symptom"] == "queue_lag"]


def closed(agent: Agent, since_ns: int) -> list[dict[str, Any]]:
    rows = lags(agent, since_ns)
    return rows if rows and all(row["state"] == "closed" for row in rows) else []


def test_it_waits_for_a_lock_that_is_still_held(queue: tuple[Queue, Agent]) -> None:
    """The call has not ended, and is known all the same; so is what the holder does."""
    one, agent = queue
    began = boot_ns()
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(one.lock), "120"]) as holder:

        def named() -> list[dict[str, Any]]:
            return [row for row in lags(agent, began) if row["culprit_pid"] == holder.pid]

        (row,) = agent.until(named, 30)
        assert holder.poll() is None
        assert row["cause"] in {"process_wait", "syscall"}, row["sentence"]
        holder.kill()
    (row,) = agent.until(lambda: closed(agent, began), 40)
    assert row["culprit_pid"] == holder.pid, row["sentence"]


@pytest.mark.parametrize(
    ("fault", "causes"),
    [(signalled(signal.SIGUSR1), {"process_wait"}), (signalled(signal.SIGUSR2), {"busy"})],
    ids=["sleep", "computes"],
)
def test_what_a_consumer_does(queue: tuple[Queue, Agent], fault: Callable[[Queue], int], causes: set[str]) -> None:
    one, agent = queue
    began = boot_ns()
    culprit = fault(one)
    (row,) = agent.until(lambda: closed(agent, began), 40)
    assert (row["cause"] in causes, row["culprit_pid"]) == (True, culprit), row["sentence"]
