"""Looking through memory that the kernel writes to meanwhile."""

from __future__ import annotations

import mmap
import os
import signal

import numpy as np

from agent.probes.tcp import taken


def test_it_does_not_matter_that_it_changes_while_it_is_looked_through() -> None:
    """As by the kernel: from outside of this process."""
    shared = np.frombuffer(mmap.mmap(-1, 1 << 19), "<u8")
    writer = os.fork()
    if not writer:
        while True:
            shared[:] = 1
            shared[:] = 0
    try:
        found = {len(taken(shared)) for _ in range(3000)}
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
    assert len(found) > 1  # it did change
