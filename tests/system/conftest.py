"""Agents for the tests of this folder; all end with their test, and the shared one with its file."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.system.agent import Agent


@contextmanager
def agents() -> Iterator[Callable[..., Agent]]:
    """Starts agents; all are stopped, and their directories removed, at the end, whichever of them fails to."""
    with ExitStack() as ends:

        def begin(*args: str, root: Path | None = None, **more: Any) -> Agent:
            where = root or Path(tempfile.mkdtemp(prefix="tickscope-test-"))
            ends.callback(shutil.rmtree, where, ignore_errors=True)
            agent = Agent(where, *args, **more)
            ends.callback(agent.end)
            return agent

        yield begin


@pytest.fixture
def start() -> Iterator[Callable[..., Agent]]:
    """start(*args, ...) starts an agent."""
    with agents() as begin:
        yield begin


@pytest.fixture(scope="module")
def shared() -> Iterator[Agent]:
    """An agent with the default settings, for the tests of a file that leave it as it is."""
    with agents() as begin:
        yield begin().ready()
