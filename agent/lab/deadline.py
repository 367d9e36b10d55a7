"""A time limit for a session, so that one that hangs does not stop the benchmark."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from agent.errors import AgentError

AGAIN_S = 120.0


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """For the main thread only. Raises AgentError when the block takes longer, and again every two minutes, since its
    clean-up may hang, too.
    """

    def over(_number: int, _frame: object) -> None:
        raise AgentError(
            f"the run did not end within {seconds:.0f} s", why="a program of the workload, or the agent, hangs"
        )

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # a signal that comes now is ignored
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
