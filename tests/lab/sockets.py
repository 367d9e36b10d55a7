"""Sockets as the agent makes them, at a path of a test's own."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from agent.clock.subscribers import SUBSCRIBERS
from agent.limiters import intake
from agent.posix.rundir import RunDirectory


def directory(path: Path) -> RunDirectory:
    """The directory of this name, our own."""
    return RunDirectory(str(path.parent), os.geteuid(), os.getegid())


def datagrams(path: Path) -> socket.socket:
    """The intake's socket for datagrams, at ``path``."""
    return directory(path).bind(path.name, 0o666, intake.IntakeSockets().datagrams)


def notices(path: Path) -> socket.socket:
    """The socket that subscribers of clock jumps connect to."""
    return directory(path).listen(path.name, 0o666, socket.SOCK_STREAM, SUBSCRIBERS)
