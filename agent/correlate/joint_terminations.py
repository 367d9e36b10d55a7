"""Terminations of one program's processes by one act: one signal that stopped them all, or an end that caused the
others. Pure; from rows of ``process_event``.

PostgreSQL, nginx or gunicorn have a dozen processes each. Stopping or killing them is one fault.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from agent.correlate.rows import known
from agent.correlate.terminations import ENDS, STOPS, Termination, chained, of_row
from agent.correlate.thresholds import SECOND
from agent.correlate.words import text
from agent.tables import TABLES

_KINDS = TABLES["process_event"].by_name["kind"]
_STOPS, _ENDS = ([_KINDS.code(kind) for kind in kinds] for kinds in (STOPS, ENDS))
_EXITED = _KINDS.code("exited")
_AT_ONCE_NS = 100_000_000  # between two signals of one command
_ALONG_NS = 300_000_000  # after an end, the limit for processes that end by themselves because of it
_REPORTED_NS = SECOND  # ... and for those that other processes of the program end
_MOST = 4096  # the number of events that are kept


def joint_termination(termination: Termination, events: np.ndarray) -> Termination:
    """Adds the other processes of its program (and user, and cgroup) with the same cause. A termination that follows
    from another one is reported as that one. A frozen cgroup is one act already.
    """
    if termination.kind == "frozen" or termination.older or not len(events):
        return termination
    near = events["comm"] == termination.comm.encode()
    near &= np.abs(events["t_ns"] - termination.from_ns) <= _REPORTED_NS
    near &= np.isin(events["kind"], _STOPS if termination.stop else _ENDS) & known(events["pid"])
    if np.count_nonzero(near) < 2:
        return termination
    rows = events[near]
    if termination.uid is not None:
        rows = rows[(rows["uid"] == termination.uid) | ~known(rows["uid"])]
    if termination.cgroup > 0:
        rows = rows[(rows["cgroup_id"] == termination.cgroup) | (rows["cgroup_id"] <= 0)]
    rows = rows[np.lexsort((rows["pid"], rows["t_ns"]))][-_MOST:]
    own = np.flatnonzero((rows["pid"] == termination.pid) & (rows["t_ns"] == termination.from_ns))
    if not len(own):
        return termination
    return (_stopped if termination.stop else _ended)(termination, rows, int(own[0]), events)


def _stopped(termination: Termination, rows: np.ndarray, own: int, _events: np.ndarray) -> Termination:
    hit = rows[_at_once(rows, own, _alike(rows, own))]
    first = hit[0]
    return replace(termination, joint_scope=f"{int(first['pid'])}/{_tick(first)}", joint_pids=_pids(hit))


def _ended(termination: Termination, rows: np.ndarray, own: int, events: np.ndarray) -> Termination:
    well = (rows["kind"] == _EXITED) & (rows["exit_code"] == 0)
    well[own] = False
    others = well | ~_kin(rows, own)  # orderly exits cause no other
    rows, own = rows[~others], own - int(np.count_nonzero(others[:own]))
    root = int(np.argmax(_from_outside(rows))) if _from_outside(rows).any() else 0
    after_ns = rows["t_ns"] - rows["t_ns"][root]
    hit = (rows["kind"] == _EXITED) & (after_ns >= -_AT_ONCE_NS) & (after_ns <= _ALONG_NS)
    hit |= _by_its_own(rows) & (after_ns >= 0)
    hit |= _at_once(rows, root, _alike(rows, root))
    hit[root] = True
    if not hit[own] or len(_pids(rows[hit])) < 2:
        return termination
    row = rows[root]
    if own != root:
        begun = of_row(row, int(row["pid"]), _tick(row), text(row["comm"]), termination.cgroup)
        termination = replace(chained(begun, events), replaced=termination.replaced)
    return replace(termination, joint_pids=_pids(rows[hit]))


def _kin(rows: np.ndarray, own: int) -> np.ndarray:
    """Parent, children and siblings of that process: many programs are a "python". After their parent, children belong
    to process 1. Or terminated alike.
    """
    pid, parent = rows["pid"], rows["parent_pid"]
    kin = (parent == parent[own]) | (parent == pid[own]) | (pid == parent[own])
    kin |= (parent <= 1) | (parent[own] <= 1)  # <= 0: unknown
    return np.asarray(kin | ((rows["kind"] != _EXITED) & _alike(rows, own)))


def _alike(rows: np.ndarray, one: int) -> np.ndarray:
    """Terminated by the same signal of the same program."""
    same = [rows[c] == rows[c][one] for c in ("kind", "signal", "exit_code", "sender_comm")]
    return np.asarray(np.logical_and.reduce(same))


def _at_once(rows: np.ndarray, one: int, among: np.ndarray | None = None) -> np.ndarray:
    """The rows in one run with that row: each soon after the one before."""
    some = np.arange(len(rows)) if among is None else np.flatnonzero(among)
    run = np.append(0, np.cumsum(np.diff(rows["t_ns"][some]) > _AT_ONCE_NS))
    hit = np.zeros(len(rows), np.bool_)
    hit[some[run == run[np.flatnonzero(some == one)[0]]]] = True
    return hit


def _by_its_own(rows: np.ndarray) -> np.ndarray:
    """Terminated by another process of its program."""
    return np.asarray((rows["sender_comm"] == rows["comm"]) & (rows["sender_pid"] != rows["pid"]))


def _from_outside(rows: np.ndarray) -> np.ndarray:
    """Terminated by another program or by the kernel, or crashed."""
    return np.asarray((rows["kind"] != _EXITED) & ~_by_its_own(rows))


def _tick(row: np.void) -> int:
    return int(row["proc_start_ns"]) // 10_000_000


def _pids(rows: np.ndarray) -> tuple[int, ...]:
    return tuple(dict.fromkeys(rows["pid"].tolist()))
