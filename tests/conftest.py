"""For every test: Ctrl-C works in the programs that tests start.

A shell that runs the tests in the background has SIGINT ignored, which programs inherit, Python's among them.
"""

from __future__ import annotations

import fcntl
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def own_clock() -> Iterator[None]:
    """No other run of the tests on this machine steps its clock meanwhile."""
    with (Path(tempfile.gettempdir()) / "tickscope-tests.clock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
