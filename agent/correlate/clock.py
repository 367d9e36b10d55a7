"""Clock jumps: what moved the wall clock, how far, and which decisions fell into the time that happened twice or never.

Decisions and steps are both on CLOCK_BOOTTIME. A step of D at t0 makes the wall interval of length D at the step occur
twice (backward) or never (forward). Under one of the two offsets, the wall time of exactly the decisions whose interval
[t_ns - duration_ns, t_ns] meets [t0 - D, t0 + D] lies in it: BOOTTIME to wall time is one constant on each side, so the
constants cancel. Decisions further away, but within one window of their limiter, straddle the step: their window was
stretched or cut.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from agent.batch import Batch
from agent.columns import NULL_I64
from agent.correlate.catalogue import causes, dtypes
from agent.correlate.guard import Guard
from agent.correlate.limiters import at_work
from agent.correlate.rows import LastRows, groups
from agent.correlate.steps import Affected, ClockJump, JumpSeries, MovedTimers
from agent.correlate.thresholds import SECOND, CorrelatorConfig
from agent.correlate.words import fit, text
from agent.limiters.replay import jump as replay
from agent.limiters.replay.jump import Decisions
from agent.tables import TABLES

_CHANGE, _OUTCOME, _TIMER = TABLES["clock_change"], TABLES["limiter_jump"], TABLES["timer_effect"]
_I64 = np.iinfo(np.int64)
#: Columns read for jumps and their effects.
READS = {
    "clock_change": (
        "kind",
        "via",
        "unwatched_ns",
        "size_ns",
        "err_ns",
        "real_mono_before_ns",
        "real_mono_after_ns",
        "ret",
    ),
    "limiter_decision": (
        "limiter_id",
        "library",
        "result",
        "limit_per_s",
        "burst",
        "window_ns",
        "wait_ns",
        "duration_ns",
        "step_immune",
        "goroutine",
        "sample_rate",
        "key",
        "remaining",
        "program_wall_ns",
        "library_version",
        "cost",
        "unlimited",
        "member",
    ),
    "timer_effect": ("system", "destination", "kind", "timers", "jump_t_ns", "moved_ns"),
}
_TIMER_GROUPS = 64  # queues with timers that a jump moved
_RECENT = 16  # series with a last jump that another process may undo
_REPLAYED, _MEMBERS = 3, 64  # limiters, as many as a sentence names; members of all of them
_REFUSED = (TABLES["limiter_decision"].code("result", "refused"), TABLES["limiter_decision"].code("result", "error"))


class ClockWatch:
    """Takes clock changes and decisions in time order and keeps the jumps whose effects are still counted."""

    def __init__(self, config: CorrelatorConfig, guard: Guard | None = None) -> None:
        self._config, self._guard = config, guard or Guard()
        self._causes = {_CHANGE.code("kind", c.jumps.change): c for c in causes().values() if c.jumps}
        self.decisions = LastRows(dtypes()["limiter_decision"], config.keep_decisions, config.keep_ns)
        self.counting: list[ClockJump] = []
        self.skipped = 0
        self._series: dict[tuple[str, str | None], JumpSeries] = {}
        self._recent: deque[JumpSeries] = deque(maxlen=_RECENT)
        self._outcomes: list[dict[str, Any]] = []

    def outcomes(self) -> list[Batch]:
        """The replays since the last call, as rows of ``limiter_jump``."""
        found, self._outcomes = self._outcomes, []
        return [_rows(found)] if found else []

    def judge(self, config: CorrelatorConfig) -> None:
        """Sets the thresholds for later jumps."""
        self._config = config

    def feed(
        self,
        changes: np.ndarray | None,
        decisions: np.ndarray | None,
        until_ns: int,
        timers: np.ndarray | None = None,
    ) -> list[JumpSeries]:
        """Takes rows before ``until_ns``; returns the series that are new or grew. Jumps whose time is over leave
        ``counting``. timers: rows of ``timer_effect``.

        Beyond ``max_findings`` simultaneous jumps, more jumps of a series are only counted, and others are left out
        (``skipped``).
        """
        if decisions is not None:
            for jump in self.counting:
                self._count(jump, decisions)
            self.decisions.add(decisions)
        grown: dict[int, JumpSeries] = {}
        for row in () if changes is None else changes:
            made = self._jump(row)
            if made is None or not self._place(made):
                continue
            grown[id(made.series)] = made.series
            if (
                len(self.counting) < self._config.max_findings
            ):  # a program may step the clock in a loop: the first steps are enough
                self._count_earlier(made, until_ns)
                self.counting.append(made)
            else:
                made.series.complete = False
        for jump in self.counting:
            if timers is not None:
                self._count_timers(jump, timers)
            if jump.until_ns <= until_ns:
                self._guard.attempt("replay of limiters", self._replay, jump, otherwise=None)
        self.counting = [jump for jump in self.counting if jump.until_ns > until_ns]
        return list(grown.values())

    @staticmethod
    def _count_timers(jump: ClockJump, rows: np.ndarray) -> None:
        """Of the first jump of a series."""
        mine = rows[(rows["jump_t_ns"] == jump.t_ns) & (rows["moved_ns"] != NULL_I64) & (rows["moved_ns"] != 0)]
        if not len(mine) or jump is not jump.series.first:
            return
        first, group = groups([mine["system"], mine["destination"], mine["kind"]])
        for i, at in enumerate(first[:_TIMER_GROUPS]):
            row, moved = mine[at], mine["moved_ns"][group == i]
            jump.series.timers.append(
                MovedTimers(
                    text(row["system"]),
                    text(row["destination"]),
                    _TIMER.by_name["kind"].word(int(row["kind"])),
                    int(mine["timers"][group == i].sum()),
                    int(np.abs(moved).max()),
                )
            )

    def _replay(self, jump: ClockJump) -> None:
        """Replays the limiters that the sentence names on true time. A jump that is not alone is not replayed, since
        the next one came too soon.
        """
        hit = sorted(
            (affected for affected in jump.series.affected.values() if affected.inside and not affected.immune),
            key=lambda affected: -affected.inside,
        )[:_REPLAYED]
        if not hit or jump.series.count > 1 or not jump.declared.moves:
            return
        rows = self.decisions.between(jump.t_ns - self._config.keep_ns, jump.until_ns)
        rows = rows[np.isin(rows["limiter_id"], [affected.limiter.encode() for affected in hit])]
        if not len(rows):
            return
        complete = int(rows["t_ns"][0]) if self.decisions.dropped else jump.t_ns - self._config.keep_ns
        decisions = Decisions(rows, complete)
        found = decisions.around(replay.Jump(jump.t_ns, jump.size_ns, 0, jump.until_ns), most=_MEMBERS)
        named = {(affected.limiter, pid) for affected in hit for pid in (affected.pid, None)}
        self._outcomes += [one.as_row() for one in found if (one.limiter_id, one.pid) in named]
        for affected in hit:
            mine = [one for one in found if (one.limiter_id, one.pid) == (affected.limiter, affected.pid)]
            if any(one.quality not in ("exact", "bounded") for one in mine) or (len(mine) > 1 and decisions.left_out):
                continue
            moved = [(one.excess, one) for one in mine if one.excess]
            affected.excess = sum(excess for excess, _ in moved)
            affected.excess_exact = (
                all(one.quality == "exact" for _, one in moved) and len({e > 0 for e, _ in moved}) <= 1
            )
            if moved:
                affected.excess_ns = (
                    min(one.excess_from_ns or jump.t_ns for _, one in moved),
                    max(one.excess_to_ns or jump.t_ns for _, one in moved),
                )

    def _place(self, jump: ClockJump) -> bool:
        """Adds a jump to its actor's series, or to the one that it undoes, or starts a new one. False if there is no
        room for another.
        """
        series = self._series.get(jump.actor)
        if series is None or jump.t_ns - series.end_ns > self._config.burst_ns:
            fresh = (s for s in reversed(self._recent) if jump.t_ns - s.end_ns <= self._config.undone_ns)
            series = next((s for s in fresh if s.undone_by(jump)), None)
        if series is not None:
            series.add(jump)
            if series.rivals:
                series.open_until_ns = jump.t_ns + self._config.undone_ns
            self._series[jump.actor] = series
            return True
        self._series = {actor: s for actor, s in self._series.items() if jump.t_ns - s.end_ns <= self._config.burst_ns}
        if len(self.counting) >= self._config.max_findings or len(self._series) >= self._config.max_findings:
            self.skipped += 1
            return False
        self._series[jump.actor] = JumpSeries(jump)
        self._recent.append(self._series[jump.actor])
        return True

    def _count_earlier(self, jump: ClockJump, until_ns: int) -> None:
        size = abs(jump.size_ns)
        oldest = self.decisions.from_ns
        kept = not self.decisions.dropped or oldest is None or oldest <= jump.t_ns - size
        jump.series.complete &= kept and size <= self._config.clock_cap_ns
        self._count(
            jump,
            self.decisions.between(jump.t_ns - min(self._config.keep_ns, self._config.clock_cap_ns + size), until_ns),
        )

    def _jump(self, row: np.void) -> ClockJump | None:
        cause = self._causes.get(int(row["kind"]))
        if cause is None or cause.jumps is None:
            return None
        before, after = (_int(row[f"real_mono_{side}_ns"]) for side in ("before", "after"))
        size = _int(row["size_ns"])
        if size is None and before is not None and after is not None:
            size = after - before
        ret = _int(row["ret"])
        least = self._guard.attempt(
            f"least jump of {cause.name}", cause.jumps.least_ns, self._config, otherwise=self._config.clock_alarm_ns
        )
        if not size or abs(size) < least or (ret is not None and ret < 0):
            return None
        t_ns = int(row["t_ns"])
        via = text(row["via"])
        return ClockJump(
            cause.name,
            cause.jumps,
            t_ns,
            size,
            _int(row["err_ns"]),
            _int(row["pid"]) or None,
            text(row["comm"]),
            "" if via == "none" else via,
            t_ns + min(abs(size), self._config.clock_cap_ns) + self._config.clock_settle_ns,
            before,
            after,
            abs(size) >= self._config.clock_alarm_ns,
            abs(size) < self._config.clock_min_ns,
            _int(row["unwatched_ns"]),
        )

    def _near(self, jump: ClockJump, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Masks: decisions in the interval that happened twice or never, and decisions whose window straddles
        the jump.
        """
        size = abs(jump.size_ns)
        begun, end = at_work(rows)
        counted = end <= jump.until_ns
        inside = counted & (end >= jump.t_ns - size) & (begun <= jump.t_ns + size)
        window = np.minimum(_window_ns(rows), self._config.clock_cap_ns)
        return inside, counted & ~inside & (end >= jump.t_ns - window) & (begun <= jump.t_ns + window)

    def _count(self, jump: ClockJump, rows: np.ndarray) -> None:
        inside, near = self._near(jump, rows)
        for earlier in jump.series.last_jumps if (inside | near).any() else ():
            if earlier is jump:
                break
            counted, seen = self._near(earlier, rows)
            inside, near = inside & ~counted, near & ~counted & ~seen
        chosen = np.flatnonzero(inside | near)
        if not len(chosen):
            return
        rows, inside = rows[chosen], inside[chosen]
        jump.series.complete &= not (rows["sample_rate"] < 1).any()
        refused = np.isin(rows["result"], _REFUSED)
        first, group = groups([rows["limiter_id"], rows["pid"], rows["proc_start_ns"]])
        counts = [
            np.bincount(group, mask, len(first)).astype(np.int64)
            for mask in (inside & ~refused, inside & refused, ~inside)
        ]
        affected = jump.series.affected
        for i, at in enumerate(first):
            row = rows[at]
            key = bytes(row["limiter_id"]), int(row["pid"]), int(row["proc_start_ns"])
            entry = affected.get(key)
            if entry is None:
                if len(affected) >= self._config.subjects:
                    jump.series.complete = False
                    continue
                immune = {0: False, 1: True}.get(int(row["step_immune"]))
                entry = affected[key] = Affected(
                    text(row["limiter_id"]), text(row["library"]), _int(row["pid"]), text(row["comm"]), immune
                )
            entry.inside_allowed += int(counts[0][i])
            entry.inside_refused += int(counts[1][i])
            entry.straddling += int(counts[2][i])


def _window_ns(rows: np.ndarray) -> np.ndarray:
    """A limiter's window: as reported, else the time in which a full burst refills, else 0."""
    refill = np.divide(rows["burst"], rows["limit_per_s"], out=np.zeros(len(rows)), where=rows["limit_per_s"] > 0)
    refill = np.nan_to_num(np.minimum(refill, 3600.0) * SECOND).astype(np.int64)
    return np.where(rows["window_ns"] > 0, rows["window_ns"], refill)


def _rows(found: list[dict[str, Any]]) -> Batch:
    """Values that an outcome does not have stay unknown."""
    rows = _OUTCOME.empty(len(found))
    for row, one in zip(rows, found, strict=True):
        values = {**one, "t_ns": one["until_ns"], "direction": "forward" if one["size_ns"] > 0 else "backward"}
        for column in _OUTCOME.columns:
            value = values[column.name]
            if value is None or (column.kind == "enum" and not value):
                continue
            row[column.name] = (
                column.code(value)
                if column.kind == "enum"
                else fit(value, column.width)
                if column.kind == "str"
                else min(max(value, _I64.min), _I64.max)
                if column.kind == "i64"
                else value
            )
    return Batch(_OUTCOME.name, rows)


def _int(value: np.integer) -> int | None:
    number = int(value)
    return None if number == -(2**63) else number
