"""Telling the children of the agent's first lines (agent/start.py) to begin, of which one may have ended meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from agent.errors import AgentError
from agent.posix.child import Child

P = ParamSpec("P")
T = TypeVar("T")


def begun(name: str, start: Callable[Concatenate[Child, P], T], child: Child, *args: P.args, **named: P.kwargs) -> T:
    """What ``start`` makes of the child. Raises AgentError where the child has ended, else what ``start`` does."""
    try:
        return start(child, *args, **named)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise AgentError(
            f"the agent's process {name} (pid {child[1]}) ended before it could begin",
            why=_how(child[1]),
            remedy=(
                "free memory or raise the service's MemoryMax= where it was killed, then start tickscope again; what it"
                " said itself stands above"
            ),
        ) from error


def _how(pid: int) -> str:
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return "it is gone"
    if not found:
        return "it closed its socket"
    code = os.waitstatus_to_exitcode(status)
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
