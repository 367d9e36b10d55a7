"""The last rows of ``slow_syscall``. A call that goes on has rows, too (basis so_far)."""

from __future__ import annotations

import numpy as np

from agent.common.alike import most
from agent.common.copies import pick
from agent.correlate.rows import LastRows, Which, groups
from agent.correlate.thresholds import SECOND
from agent.correlate.words import Words, render, span
from agent.tables import TABLES

SO_FAR = TABLES["slow_syscall"].code("basis", "so_far")
_WAITING = TABLES["slow_syscall"].code("kind", "waiting")
#: Before the symptom of a process that nobody asks, such as a consumer: its first message may come late.
BEFORE_NS = 60 * SECOND


class CallRows(LastRows):
    """Of each call the last row of the time that is read."""

    def _between(self, from_ns: int, to_ns: int, which: Which | None = None) -> np.ndarray:
        rows = super()._between(from_ns, to_ns, which)
        so_far = rows["basis"] == SO_FAR
        if not so_far.any():
            return rows
        first, call = groups([rows["tid"], rows["t_ns"] - rows["duration_ns"]])
        last_ns = most(rows["t_ns"][first], call, rows["t_ns"])
        return pick(rows, ~so_far | (rows["t_ns"] == last_ns[call]))


def until(calls: np.ndarray, t_ns: int) -> np.ndarray:
    """With calls that go on as of that time at the latest: of a request that waits, less is known than of the call."""
    later = (calls["basis"] == SO_FAR) & (calls["t_ns"] > t_ns) & (calls["t_ns"] - calls["duration_ns"] < t_ns)
    if not later.any():
        return calls
    calls = pick(calls, np.arange(len(calls)))
    calls["duration_ns"][later] -= calls["t_ns"][later] - t_ns
    calls["t_ns"][later] = t_ns
    return calls


def ended_or_since(calls: np.ndarray, since_ns: np.ndarray | int, stuck: bool) -> np.ndarray:
    """Which calls have ended, or began at that time or later: others may be those of threads that are idle. stuck: the
    process answers nothing; its calls that wait for no input count, however long they last.
    """
    counts = (calls["basis"] != SO_FAR) | (calls["t_ns"] - calls["duration_ns"] >= since_ns)
    return np.asarray(counts | (stuck & (calls["kind"] != _WAITING)))


def lasted(call: np.void, ns: float) -> Words:
    """That long, and whether it goes on."""
    return render("{took}{more}", took=span(ns), more=" so far" if call["basis"] == SO_FAR else "")
