"""Agents for the tests of this folder; all end with their test."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.agent import Agent


@pytest.fixture
def start() -> Iterator[Callable[..., Agent]]:
    """start(*args, ...) starts an agent; all are stopped, and their directories removed, at the end."""
    agents: list[Agent] = []
    roots: list[Path] = []

    def begin(*args: str, root: Path | None = None, **more: Any) -> Agent:
        where = root or Path(tempfile.mkdtemp(prefix="tickscope-test-"))
        roots.append(where)
        agents.append(Agent(where, *args, **more))
        return agents[-1]

    yield begin
    try:
        for agent in agents:
            agent.stop(signal.SIGTERM)
    finally:
        for agent in agents:
            agent.process.kill()
            agent.process.wait()
    for root in roots:
        shutil.rmtree(root, ignore_errors=True)
