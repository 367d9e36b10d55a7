"""The wall clock of the machine that runs the tests is one, and several runs may be at work on it."""

from __future__ import annotations

import contextlib
import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def clock_to_ourselves() -> Iterator[None]:
    """Waits until no other run of the tests on this machine steps its clock, and has them wait until the end of the
    block.
    """
    with (Path(tempfile.gettempdir()) / "tickscope-tests.clock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
