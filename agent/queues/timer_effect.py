"""What a jump of the wall clock does to the timers of the servers that are polled: rows of ``timer_effect``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from agent.batch import Batch, Loss, losses
from agent.columns import NULL_I64, Column
from agent.common.clocks import boot_ns
from agent.common.fairness import Budget, UpperBound
from agent.common.packing import Packer
from agent.queues.timers import rule_of
from agent.tables import TABLES

TABLE = TABLES["timer_effect"]
#: Servers keep their timers in ms. Of timers on both clocks, the two due times are as close as these were read.
LEAST_NS = 1_000_000
ROWS_PER_S, MOST_ROWS = 500.0, 10_000
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "queues",
        "rows of `timer_effect`, all jumps together",
        f"{MOST_ROWS:,} at once, {ROWS_PER_S:g} per second",
        "dropped",
        "`loss` row `timers`",
    ),
)
_CHANGES = TABLES["clock_change"]
_KINDS = [_CHANGES.code("kind", kind) for kind in ("step", "leap")]
_WALL, _MONOTONIC, _BOTH, _CHECKED = (TABLE.code("clock", one) for one in ("wall", "monotonic", "both", "checked"))
_CONSEQUENCE_BYTES = TABLE.dtype["consequence"].itemsize
_REDELIVERY, _ID = (TABLE.code("kind", one) for one in ("redelivery", "id"))
#: A producer whose last id is not older may have made others since the last poll, until the jump.
_RECENT_NS = 10_000_000_000
#: States that are kept of a server: several may be of after the jump if the agent's loop stood still. Equal ones share
#: their rows.
_KEPT = 8
_POLLED = ("t_ns", "polled_ns")
#: More than any process of ours sends: servers, and rows of one poll of a server.
_MOST_SERVERS, _MOST_OF_SERVER = 1024, 1024


def effects(rows: np.ndarray, t_ns: int, size_ns: int, real_boot_ns: int) -> np.ndarray:
    """The rows that a jump concerns, with what it does. rows: timers as of a poll. t_ns: of the jump, CLOCK_BOOTTIME;
    real_boot_ns: REALTIME - BOOTTIME before it.

    A timer that had fired by then has no row, but what was due and had not been delivered again or checked yet waits
    again after a jump back. Ids that are made of the clock are due when the clock has reached the highest one.
    """
    out = rows[rows["timers"] != 0].copy()
    out["t_ns"] = out["jump_t_ns"] = t_ns
    out["size_ns"] = size_ns
    wall, both, checked = (out["clock"] == clock for clock in (_WALL, _BOTH, _CHECKED))
    moved = (wall | both | checked) & (out["due_wall_ns"] != NULL_I64)
    by_wall, by_monotonic = out["due_wall_ns"] - real_boot_ns, out["was_due_ns"]  # the latter null: before any time
    ids = moved & (out["kind"] == _ID)
    by_wall = np.where(ids & (by_wall > t_ns - _RECENT_NS), np.maximum(by_wall, t_ns), by_wall)
    later = np.where(both, by_monotonic, NULL_I64)
    was = np.where(moved, np.maximum(by_wall, later), by_monotonic)
    due = np.where(moved, np.maximum(np.maximum(by_wall - size_ns, t_ns), later), by_monotonic)
    immune = (out["clock"] == _MONOTONIC) | (both & moved & (np.abs(due - was) < LEAST_NS))
    due = np.where(immune, was, due)
    out["was_due_ns"] = was
    out["is_due_ns"] = np.where((out["clock"] == -1) | (checked & (size_ns > 0)), NULL_I64, due)
    known = (out["was_due_ns"] != NULL_I64) & (out["is_due_ns"] != NULL_I64)
    out["moved_ns"] = np.where(known, due - was, NULL_I64)
    out["immune"] = np.where(immune, 1, np.where((out["clock"] == -1) | (both & ~moved), -1, 0))
    _add_consequences(out, size_ns > 0)
    again = moved & ((out["kind"] == _REDELIVERY) | checked | ids) & (due > t_ns)
    left: np.ndarray = out[(was > t_ns) | again | (was == NULL_I64)]
    return left


def _add_consequences(rows: np.ndarray, forward: bool) -> None:
    """Before what is not known, if there is such a thing."""
    named = rows[["system", "kind", "version", "clock"]]
    for one in np.unique(named[rows["clock"] != -1]):
        kind, clock = (TABLE.by_name[name].word(int(one[name])) for name in ("kind", "clock"))
        known = rule_of(one["system"].decode(errors="replace"), kind, one["version"].decode(errors="replace"), clock)
        if known is None:
            continue
        words = (known.forward if forward else known.backward).encode()
        mine = (named == one) & (rows["clock"] != -1)
        before = rows["consequence"][mine]
        rows["consequence"][mine] = [b"; ".join(filter(None, (words, why)))[:_CONSEQUENCE_BYTES] for why in before]


def plain(row: np.void) -> dict[str, Any]:
    """A row's values by column, as JSON has them; None if unknown."""
    return {column.name: _plain(column, row[column.name]) for column in TABLE.columns}


def _plain(column: Column, value: Any) -> Any:
    if column.kind == "str":
        return bytes(value).decode(errors="replace")
    number = int(value)
    if number == column.null:
        return None
    return column.word(number) if column.kind == "enum" else bool(number) if column.kind == "bool" else number


def row_of(given: dict[str, Any]) -> bytes:
    """A row of the control socket's answer as the table stores it. Raises ValueError and others if it is none."""
    return Packer(TABLE).pack([given])


class Timers:
    """The timers of all servers as of their last polls; a Filter (agent/contracts.py), which adds rows to jumps.

    boot_mono_ns: BOOTTIME - MONOTONIC now.
    """

    name = "timers"

    def __init__(self, boot_mono_ns: Callable[[], int]) -> None:
        self._boot_mono_ns = boot_mono_ns
        self._states: dict[tuple[bytes, bytes], list[tuple[int, np.ndarray]]] = {}  # (time of the poll, its rows)
        self._budget = Budget(ROWS_PER_S, MOST_ROWS)

    def see(self, rows: np.ndarray) -> None:
        """Takes rows of ``timer_effect`` without a jump, of one poll or of a part of one."""
        for key in {(bytes(row["system"]), bytes(row["cluster"])) for row in rows}:
            mine = rows[(rows["system"] == key[0]) & (rows["cluster"] == key[1])]
            if key in self._states or len(self._states) < _MOST_SERVERS:
                states = self._states.setdefault(key, [])
                for t_ns in np.unique(mine["t_ns"]).tolist():
                    self._add(states, t_ns, mine[mine["t_ns"] == t_ns])

    @staticmethod
    def _add(states: list[tuple[int, np.ndarray]], t_ns: int, rows: np.ndarray) -> None:
        if states and states[-1][0] == t_ns:
            rows = np.concatenate([states.pop()[1], rows])[:_MOST_OF_SERVER]
        for name in _POLLED:
            rows[name] = 0
        if states and np.array_equal(states[-1][1], rows):
            rows = states[-1][1]
        states.append((t_ns, rows))
        del states[:-_KEPT]

    def forget(self, system: str) -> None:
        """Its servers are not polled any more, or others are."""
        self._states = {key: states for key, states in self._states.items() if key[0] != system.encode()}

    def __call__(self, batch: Batch, now_ns: int) -> Iterable[Batch]:
        yield batch
        if batch.table != "clock_change" or not self._states:
            return
        for change in batch.rows:
            found = self._of(change)
            if not len(found):
                continue
            if len(found) > self._budget.left(0, now_ns):
                yield losses("intake", Loss(self.name, len(found), t_ns=now_ns))
                continue
            self._budget.spend(0, len(found), now_ns)
            yield Batch(TABLE.name, found)

    def latest(self, before_ns: int) -> np.ndarray:
        """Of each server those of its last poll before then, CLOCK_BOOTTIME."""
        found = [TABLE.empty(0)]
        for states in self._states.values():
            t_ns, rows = next((state for state in reversed(states) if state[0] <= before_ns), (0, found[0]))
            found.append(rows.copy())
            for name in _POLLED:
                found[-1][name] = t_ns
        return np.concatenate(found)

    def document(self) -> dict[str, Any]:
        """For the control socket: the timers now, as ``row_of`` takes them."""
        found = self.latest(boot_ns())
        return {"rows": [plain(row) for row in found if row["timers"] != 0]}

    def _of(self, change: np.void) -> np.ndarray:
        size_ns, before_ns, ret = (int(change[name]) for name in ("size_ns", "real_mono_before_ns", "ret"))
        refused = ret != NULL_I64 and ret < 0
        if change["kind"] not in _KINDS or refused or NULL_I64 in (size_ns, before_ns) or abs(size_ns) < LEAST_NS:
            return TABLE.empty(0)
        t_ns = int(change["t_ns"])
        return effects(self.latest(t_ns), t_ns, size_ns, before_ns - self._boot_mono_ns())
