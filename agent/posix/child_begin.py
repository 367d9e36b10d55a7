"""The beginning of a child process that the agent has started with ``spawn_with_settings``."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
from typing import Any

from agent.posix import privilege


def begin_worker(name: str, budget_bytes: int) -> tuple[socket.socket, dict[str, Any], list[int]]:
    """Gives up every privilege, limits the memory that this process may write to, and returns its end of the socket to
    the agent, its settings, and its further descriptors, from its arguments. name: in ps. Raises OSError.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    agent, settings, parent, *more = map(int, sys.argv[1:])
    privilege.keep_only(agent, settings, *more)
    privilege.set_name(name)
    privilege.give_up_all(parent)
    resource.setrlimit(resource.RLIMIT_DATA, (budget_bytes, budget_bytes))
    with os.fdopen(settings) as file:
        return socket.socket(fileno=agent), json.load(file), more
