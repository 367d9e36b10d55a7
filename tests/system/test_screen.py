"""The summary on a terminal that changes its size."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from itertools import pairwise

from tests.patience import PATIENCE
from tests.system.agent import TICKSCOPE, Agent

LINE = b"\r\x1b[K"


def resize(terminal: int, columns: int, lines: int) -> None:
    """As a terminal does it: the kernel tells the program in front."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


def read_lines(terminal: int, enough: int) -> list[str]:
    """So many whole lines, from now on, without what is reported above them."""
    out, end = b"", time.monotonic() + 30 * PATIENCE
    while out.count(LINE) < enough + 1:
        assert time.monotonic() < end, out[-500:]
        if select.select([terminal], [], [], 1)[0]:
            out += os.read(terminal, 1 << 16)
    return [written.decode().rpartition("\n")[2] for written in out.split(LINE)[1:-1]]


def test_it_is_drawn_anew_for_each_size(start: Callable[..., Agent]) -> None:
    """From the first line after the change on none is longer than the terminal is wide now."""
    agent = start().ready()  # the second of this host: what the first one said is not on the screen
    assert agent.stop(signal.SIGTERM) in (0, 130)
    ours, theirs = os.openpty()
    resize(theirs, 100, 40)
    seen = []
    with subprocess.Popen(
        ["setsid", "--ctty", "--wait", TICKSCOPE, "run"],
        env={**agent.env, "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as agent_on_screen:
        os.close(theirs)
        try:
            for columns, lines in ((100, 40), (40, 10), (120, 50)):
                resize(ours, columns, lines)
                read_lines(ours, 1)  # one may have been under way
                drawn = read_lines(ours, 1)
                seen.append(max(map(len, drawn)))
                assert all(0 < len(line) < columns for line in drawn), drawn
        finally:
            os.write(ours, b"\x03")
            with contextlib.suppress(OSError):  # until its last descriptor of the terminal is closed
                while os.read(ours, 1 << 16):
                    pass
            os.close(ours)
    assert agent_on_screen.returncode == 130
    assert all(a != b for a, b in pairwise(seen)), seen  # the lines use the room that there is
