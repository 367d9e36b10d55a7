"""Two replicas of one limiter whose clocks differ: what they admit together, compared to one clock. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from agent.limiters.models.catalogue import MODELS
from agent.limiters.models.model import SECOND, Arrivals
from agent.limiters.replay.grouped import codes, starts_of
from agent.limiters.replay.jump import ALLOWED, CANCELLED, ERROR, Decisions, Jump, clocks
from agent.limiters.replay.ruled import ruled


@dataclass(frozen=True)
class Split:
    """A limiter whose requests two replicas share, with clocks ``skew_ns`` apart, in windows of ``window_ns`` with
    ``limit`` units. The counter is common: each replica counts in its own clock's window.

    in_other_window: requests that the other replica would have counted in another window. _same: with one clock;
    _apart: with two. most_: the most admitted in one true window. over_admitted, wrongly_refused: request by request.
    """

    limiter_id: str
    algorithm: str
    window_ns: int
    skew_ns: int
    limit: float
    replicas: str
    decisions: int
    in_other_window: int
    admitted_same: int
    admitted_apart: int
    over_admitted: int
    wrongly_refused: int
    most_same: int
    most_apart: int
    reason: str

    def as_row(self) -> dict[str, Any]:
        return asdict(self)


def split(decisions: Decisions, window_ns: int, skew_ns: int, wall_ns: int) -> list[Split]:
    """The results of the limiters in ``decisions`` with known limits. wall_ns: REALTIME - BOOTTIME, for rows without
    the program's wall time.
    """
    rows = decisions.rows[~np.isin(decisions.rows["result"], (ERROR, CANCELLED))]
    if not len(rows):
        return []
    first, group = codes([rows["limiter_id"], rows["library"]])
    found = [_one(rows[group == at], decisions, window_ns, skew_ns, wall_ns) for at in range(len(first))]
    return sorted((one for one in found if one is not None), key=lambda one: (-one.decisions, one.limiter_id))


def _one(rows: np.ndarray, decisions: Decisions, window_ns: int, skew_ns: int, wall_ns: int) -> Split | None:
    rule = ruled(rows[-1], decisions.declarations)
    by_window = rule.model is not None and "window_ns" in rule.model.needs
    model = rule.model if by_window and rule.model is not None else MODELS["fixed window"]
    limit = replace(
        rule.limit, window_ns=window_ns, kept_ns=2 * (window_ns + abs(skew_ns))
    )  # its expiry is by a third clock
    limit = replace(limit, count=_count(rows, decisions, window_ns))
    if not limit.count or (rows["unlimited"] == 1).all():
        return None
    t, _, _, _ = clocks(rows, Jump(int(rows["t_ns"][0]), 0, int(rows["t_ns"][0]) + wall_ns, int(rows["t_ns"][-1])))
    of_process, process = codes([rows["pid"], rows["proc_start_ns"]])
    replica = process % 2 if len(of_process) > 1 else np.arange(len(rows)) % 2
    _, keys = codes(
        [rows["key"], rows["member"]] if len(of_process) == 1 else [rows["key"]]
    )  # addresses of two processes cannot be compared
    order = np.argsort(keys, kind="stable")
    t, replica, keys, rows = t[order], replica[order], keys[order], rows[order]
    arrivals = Arrivals(t, np.where(rows["cost"] > 0, rows["cost"], 1.0), starts_of(keys))
    same, apart = model.decide(arrivals, limit), model.decide(arrivals.at(t + skew_ns * replica), limit)
    differing = int((same != (rows["result"] == ALLOWED)).sum())
    other = ((t + skew_ns * replica) // window_ns) != ((t + skew_ns * (1 - replica)) // window_ns)
    return Split(
        rows["limiter_id"][0].decode("utf-8", "backslashreplace"),
        model.name,
        window_ns,
        skew_ns,
        float(limit.count),
        "its processes" if len(of_process) > 1 else "every other request",
        len(rows),
        int(other.sum()),
        int(same.sum()),
        int(apart.sum()),
        int((apart & ~same).sum()),
        int((same & ~apart).sum()),
        _most(t, same, keys, window_ns),
        _most(t, apart, keys, window_ns),
        (
            ""
            if not differing
            else (
                f"{differing} of {len(rows)} decisions differ from the recorded ones: the window, limit or algorithm is"
                " another one"
            )
        ),
    )


def _count(rows: np.ndarray, decisions: Decisions, window_ns: int) -> float:
    """Units in a window of that length."""
    declarations = next((one.count for one in decisions.declarations if one.count), 0.0)
    if declarations:
        return declarations
    limit = ruled(rows[-1], decisions.declarations).limit
    return (
        float(max(round(limit.per_s * window_ns / SECOND), 1))
        if limit.per_s
        else limit.count
        if limit.window_ns == window_ns
        else 0.0
    )


def _most(t: np.ndarray, admitted: np.ndarray, keys: np.ndarray, window_ns: int) -> int:
    """The most that was admitted of one key in one window of true time."""
    if not admitted.any():
        return 0
    window = np.asarray(t[admitted] // window_ns, np.int64)
    window -= window.min()
    found = np.unique(keys[admitted] * (int(window.max()) + 1) + window, return_counts=True)
    return int(max(found[1].tolist()))
