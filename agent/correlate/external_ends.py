"""Whether a worker was ended or stopped from outside. Pure; from rows of ``process_event``.

A worker is a process that works and that nobody reaches by a connection: it takes jobs from a pipe, or from a server
that is not watched. Its end is a finding if memory ran out, if it crashed, or if it was killed by a process that is not
a child of its parent, not the host's first process, and not at its terminal, while its parent lives on. If the parent
ends too, a whole tree was ended, as job runners do. A SIGKILL by its parent counts: an orderly end begins with SIGTERM,
which is no finding. Only SIGSTOP counts as a stop: the other stop signals come from a terminal. Shells are not workers.
"""

from __future__ import annotations

import signal

import numpy as np

from agent.correlate.rows import known
from agent.correlate.thresholds import SECOND
from agent.correlate.words import text
from agent.tables import TABLES

_EVENT = TABLES["process_event"]
_STOPPED, _KILLED, _OOM = (_EVENT.code("kind", kind) for kind in ("stopped", "killed", "oom_killed"))
_BY = {name: _EVENT.code("sender_is", name) for name in ("kernel", "itself", "parent", "ancestor", "other")}
_CRASH_BY = {_BY["kernel"], _BY["itself"]}
_CRASHES = {
    int(s) for s in (signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV, signal.SIGSYS)
}
_BRIEF_NS = 20 * SECOND
_SHELLS = frozenset(["sh", "bash", "dash", "zsh", "ksh", "fish", "busybox", "tmux", "screen"])


def shell(row: np.void) -> bool:
    return text(row["comm"]) in _SHELLS


def stops(row: np.void) -> bool:
    """Whether it was stopped from outside."""
    return bool(row["kind"] == _STOPPED and row["signal"] == signal.SIGSTOP and _others(row))


def ends(row: np.void) -> bool:
    """Whether it was killed from outside, or crashed."""
    if row["kind"] == _OOM:
        return True
    number, by = int(row["signal"]), int(row["sender_is"])
    if row["kind"] != _KILLED or not known(row["signal"]):
        return False
    crashed = number in _CRASHES and (by in _CRASH_BY or _others(row))
    return crashed or (number == signal.SIGKILL and _others(row))


def abrupt(row: np.void) -> bool:
    """Whether that is reported although a new process took its place at once. Not if its parent killed it, which may be
    intended.
    """
    return ends(row) and row["sender_is"] != _BY["parent"]


def brief(row: np.void) -> bool:
    """Whether its own parent, or an ancestor, killed it soon after its start, like a test that ends what it started.
    Nothing depends on it yet; its peers would show another symptom.
    """
    mine = row["sender_is"] in (_BY["parent"], _BY["ancestor"])
    return bool(row["kind"] == _KILLED and mine and 0 <= int(row["t_ns"]) - int(row["proc_start_ns"]) < _BRIEF_NS)


def _others(row: np.void) -> bool:
    """Whether the sender is another process, neither a child of its parent nor the first process."""
    by = int(row["sender_is"])
    parent = by == _BY["parent"] and known(row["sender_pid"]) and row["sender_pid"] == row["parent_pid"] != 1
    return bool(by in (_BY["ancestor"], _BY["other"]) or parent)
