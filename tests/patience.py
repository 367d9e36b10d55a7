"""How the machine under test differs from a real one, and how tests wait. tests/vm sets both numbers for its emulated
machines; 1 elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
#: Factor for the limits on waiting, and for pauses that give the agent time to notice something.
PATIENCE = float(os.environ.get("TICKSCOPE_TEST_PATIENCE", "1"))
#: Factor for the sizes of clock steps and for the errors allowed: emulated clocks take 10 to 100 us to read. Only where
#: the clock is the tests' own.
COARSE = int(os.environ.get("TICKSCOPE_TEST_COARSE", "1"))


def tries(limit_s: float, each_s: float = 0.02, most_s: float = 0.0) -> Iterator[None]:
    """Again and again for ``limit_s`` times PATIENCE. each_s: the pause; most_s: up to which the pauses become longer,
    for questions that take much time themselves.
    """
    end = time.monotonic() + limit_s * PATIENCE
    while True:
        yield
        if time.monotonic() > end:
            return
        time.sleep(each_s)
        each_s = max(each_s, min(1.5 * each_s, most_s))


def until(
    what: Callable[[], T],
    limit_s: float = 60,
    each_s: float = 0.02,
    most_s: float = 0.0,
    *,
    why: object = "",
    turn: Callable[[], object] = lambda: None,
) -> T:
    """What ``what`` returns once that is true. The times are those of ``tries``; then it fails with ``why``, or what
    that returns. turn: called after each try.
    """
    for _ in tries(limit_s, each_s, most_s):
        if found := what():
            return found
        turn()
    raise AssertionError(why() if callable(why) else why)


def returned(what: Callable[[], T], raises: type[Exception] | tuple[type[Exception], ...], limit_s: float = 30) -> T:
    """What ``what`` returns once it no longer raises one of these exceptions."""
    for _ in tries(limit_s, 0.05):
        try:
            return what()
        except raises as failure:
            last = failure
    raise last


def listens(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a program listens on this port now."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
        return True
    return False


def listening(
    *ports: int, host: str = "127.0.0.1", process: subprocess.Popen[Any] | None = None, log: Path | None = None
) -> None:
    """Returns once a program listens on each of these ports. process: fails if it has ended; log: shown then.

    The limit is that of the slowest server, RabbitMQ.
    """

    def written() -> str:
        return log.read_text(errors="replace")[-4000:] if log is not None else ""

    def all_listen() -> bool:
        assert process is None or process.poll() is None, written()
        return all(listens(port, host) for port in ports)

    until(all_listen, 120, 0.05, why=written)
