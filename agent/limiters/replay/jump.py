"""What a jump of the wall clock did to limiters, or would have done: replays the recorded arrivals on the program's
clock and on true time. Pure.

True time is CLOCK_BOOTTIME with the offset just before the jump, so that both clocks agree until then. A limiter's
state depends on its earlier arrivals: rows from before the jump are replayed, too, but not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from agent.columns import NULL_I64
from agent.common.copies import pick
from agent.limiters.model_settings import Declared
from agent.limiters.models.model import SECOND, Arrivals, Limit, Model
from agent.limiters.replay.grouped import codes, picked, starts_of
from agent.limiters.replay.outcome import TwoClocks, compared, windows
from agent.limiters.replay.ruled import FOLLOWS, Ruled, ruled
from agent.limiters.replay.state import levels, needed
from agent.tables import TABLES

#: Columns of ``limiter_decision`` that are used.
COLUMNS = (
    "t_ns",
    "pid",
    "proc_start_ns",
    "comm",
    "limiter_id",
    "library",
    "library_version",
    "key",
    "result",
    "cost",
    "limit_per_s",
    "burst",
    "window_ns",
    "remaining",
    "duration_ns",
    "program_wall_ns",
    "step_immune",
    "sample_rate",
    "unlimited",
    "member",
)
#: Limiters that are replayed at once, those with the most decisions. As many limiters with separate clocks were
#: observed in one program.
MOST = 256
_TABLE = TABLES["limiter_decision"]
ALLOWED, _REFUSED, _DELAYED, ERROR, CANCELLED = (
    _TABLE.code("result", name) for name in ("allowed", "refused", "delayed", "error", "cancelled")
)
_LEAST_NS = 60 * SECOND  # evaluated after a jump, in addition to its size
_MEMORIES = 10


@dataclass(frozen=True)
class Jump:
    """t_ns: CLOCK_BOOTTIME. size_ns: below 0 for a step back. wall_ns: the wall clock just before, 0 if unknown.
    until_ns: no row after it counts (the next jump, or the end of the data). hypothetical: it did not happen, and the
    rows are from an unmoved clock.
    """

    t_ns: int
    size_ns: int
    wall_ns: int
    until_ns: int
    hypothetical: bool = False


class Decisions:
    """Rows of ``limiter_decision`` with ``COLUMNS``, of one boot. complete_ns: from then on none is missing. gaps:
    (from, to) in which some are missing, CLOCK_BOOTTIME.
    """

    def __init__(
        self,
        rows: np.ndarray,
        complete_ns: int,
        gaps: Sequence[tuple[int, int]] = (),
        declarations: Sequence[Declared] = (),
    ) -> None:
        if (rows["t_ns"][1:] < rows["t_ns"][:-1]).any():
            rows = rows[np.argsort(rows["t_ns"], kind="stable")]
        self.rows, self.complete_ns, self.declarations, self._gaps = rows, complete_ns, declarations, gaps
        self.left_out = 0
        self._t = np.ascontiguousarray(rows["t_ns"])
        self._limiter = self._key = np.zeros(len(rows), np.int64)
        if len(rows):
            first, name = codes([rows["limiter_id"], rows["library"]])
            own = np.array([not ruled(rows[at], declarations).shared for at in first.tolist()])[name]
            # Each member has a state of its own, for all callers. Callers that share a state are grouped by its name.
            member = np.where(own, rows["member"], NULL_I64)
            _, of_library = codes([rows["library"]])
            what = np.where(member == NULL_I64, name, -1 - of_library)
            _, self._limiter = codes([what, member, rows["pid"] * own, rows["proc_start_ns"] * own])
            if (rows["key"] != b"").any():
                _, self._key = codes([rows["key"]])
        #: Rows by limiter, each limiter's in order of time, and their starts.
        self._by_limiter = np.argsort(self._limiter, kind="stable")
        self._begins = np.append(0, np.cumsum(np.bincount(self._limiter)))

    def around(self, jump: Jump, reach_ns: int | None = None, most: int = MOST) -> list[TwoClocks]:
        """Results of limiters with decisions after the jump, ``most`` of them, those with the most decisions first.
        reach_ns: how long after it decisions count.
        """
        end = int(np.searchsorted(self._t, jump.until_ns, "right"))
        if not end:
            return []
        many = np.bincount(self._limiter[:end])
        order = np.argsort(-many, kind="stable")
        order = order[many[order] > 0]
        self.left_out = max(self.left_out, len(order) - most)
        pieces = ((int(self._begins[at]), int(many[at])) for at in order[:most].tolist())
        found = [self._replay(self._by_limiter[begin : begin + n], jump, reach_ns) for begin, n in pieces]
        return [one for one in found if one is not None]

    def _replay(self, indices: np.ndarray, jump: Jump, reach_ns: int | None) -> TwoClocks | None:
        """indices: indices of one limiter's rows, in order of time."""
        t = self._t[indices]
        at = max(int(np.searchsorted(t, jump.t_ns)) - 1, 0)
        row = self.rows[indices[at]]
        rule = ruled(row, self.declarations)
        memory = rule.model.memory(rule.limit) if rule.model and not rule.lacking else 0
        reach = max(_LEAST_NS, _MEMORIES * memory) if reach_ns is None else reach_ns
        until = min(jump.until_ns, jump.t_ns + abs(jump.size_ns) + reach)
        # State that has expired before the jump need not be replayed.
        begin = jump.t_ns - max(_LEAST_NS // 6, 3 * memory)
        keep = slice(int(np.searchsorted(t, begin)), int(np.searchsorted(t, until, "right")))
        indices = indices[keep]
        rows = picked(self.rows, indices)
        if not len(rows) or int(rows["t_ns"][-1]) < jump.t_ns:
            return None
        about = _About(row, rule, jump, until, rows)
        if (rows["step_immune"] == 1).all() or rule.clock == "monotonic" or (rows["unlimited"] == 1).all():
            return about.unmoved()
        if rule.model is None or rule.lacking:
            return about.unknown(rule.lacking)
        return about.replayed(
            rule.model,
            self._key[indices],
            memory,
            self._doubts(rows, rule, jump, memory, until),
            max(self.complete_ns, begin),
        )

    def _doubts(self, rows: np.ndarray, rule: Ruled, jump: Jump, memory: int, until: int) -> list[str]:
        """Why the counts are only estimates."""
        found = list(rule.doubts)
        if rule.clock not in FOLLOWS:
            found.append("its clock is not known")
        if rule.clock == "remote wall":
            found.append("its clock is that of its server: the counts hold only if the server is this host")
        if (rows["step_immune"] == 1).any():
            found.append("it also used the monotonic clock")
        if (rows["sample_rate"] < 1).any():
            share = float(np.nanmin(rows["sample_rate"]))
            found.append(f"only a share of {share:.2g} of its decisions was recorded: the counts are of these")
        if any(first <= until and last >= jump.t_ns - memory for first, last in self._gaps):
            found.append("records were lost meanwhile")
        if any(len(np.unique(given[~np.isnan(given)])) > 1 for given in (rows["limit_per_s"], rows["burst"])):
            found.append("its limit changed meanwhile")
        if np.isin(rows["result"], (ERROR, CANCELLED)).any():
            found.append("decisions that failed, or whose callers gave up, are not counted")
        if (rows["result"] == _DELAYED).any() and (rows["result"] == _REFUSED).any():
            found.append("some callers waited and some did not")
        return found


@dataclass(frozen=True)
class _About:
    """One limiter near one jump."""

    row: np.void
    rule: Ruled
    jump: Jump
    until_ns: int
    rows: np.ndarray

    def _outcome(
        self,
        quality: str,
        reason: str,
        decisions: int,
        counts: dict[str, int | None],
        overlapped: int | None = None,
        skipped: int | None = None,
    ) -> TwoClocks:
        row, rule, jump = self.row, self.rule, self.jump
        limiter, library, version, comm = (
            row[name].decode("utf-8", "backslashreplace")
            for name in ("limiter_id", "library", "library_version", "comm")
        )
        pid, member = (None if row[name] == NULL_I64 or rule.shared else int(row[name]) for name in ("pid", "member"))
        return TwoClocks(
            limiter,
            member,
            library,
            version,
            pid,
            comm,
            rule.model.name if rule.model else "",
            rule.clock,
            jump.t_ns,
            jump.size_ns,
            jump.t_ns,
            self.until_ns,
            decisions,
            quality,
            reason,
            windows_overlapped=overlapped,
            windows_skipped=skipped,
            **counts,
        )

    def unknown(self, why: str) -> TwoClocks:
        return self._outcome("", why, int((self.rows["t_ns"] >= self.jump.t_ns).sum()), {})

    def unmoved(self) -> TwoClocks:
        later = self.rows[self.rows["t_ns"] >= self.jump.t_ns]
        later = later[~np.isin(later["result"], (ERROR, CANCELLED))]
        admitted = later["result"] == ALLOWED
        why = "it has no limit" if (later["unlimited"] == 1).all() and len(later) else "it ignores the wall clock"
        return self._outcome("exact", why, len(later), compared(admitted, admitted, later["t_ns"]), 0, 0)

    def replayed(self, model: Model, keys: np.ndarray, memory: int, doubts: list[str], complete_ns: int) -> TwoClocks:
        counted = ~np.isin(self.rows["result"], (ERROR, CANCELLED))
        rows, keys = picked(self.rows, np.flatnonzero(counted)), keys[counted]
        if (keys[1:] < keys[:-1]).any():
            order = np.argsort(keys, kind="stable")
            rows, keys = pick(rows, order), keys[order]
        program, true, after, unsure = clocks(rows, self.jump)
        if unsure:
            doubts.append("its clock readings were not recorded, so the starts of its windows are not known")
        recorded = rows["result"] == ALLOWED
        patient = bool((rows["result"] == _DELAYED).any())
        if patient or model.delays:
            doubts.append("its callers wait, so their requests would have come at other times")
        limit = replace(self.rule.limit, patient=patient)
        arrivals = Arrivals(program, np.where(rows["cost"] > 0, rows["cost"], 1.0), starts_of(keys))
        keep = needed(model, recorded, ~after, arrivals.starts)
        if not keep.all():
            rows = picked(rows, np.flatnonzero(keep))
            keys, recorded, after = keys[keep], recorded[keep], after[keep]
            arrivals, true = Arrivals(arrivals.t_ns[keep], arrivals.cost[keep], starts_of(keys)), true[keep]
        low, high = self._held(model, arrivals.at(true) if self.jump.hypothetical else arrivals, limit, rows, recorded)
        held = None if low is None or high is None else low if low == high else (low + high) / 2
        in_time = np.flatnonzero(after)[np.argsort(rows["t_ns"][after], kind="stable")]
        by_program, by_true = (
            model.decide(arrivals.at(clock), replace(limit, start=held)) for clock in (arrivals.t_ns, true)
        )
        # State that had expired at the jump need not fit; it is replayed only for later decisions.
        checked = rows["t_ns"] >= (self.jump.t_ns if not model.has_level else 0)
        unlike = int((recorded != (by_true if self.jump.hypothetical else by_program))[checked].sum())
        if unlike:
            doubts.append(f"the model decides {unlike} of {int(checked.sum())} requests differently from the program")
        counts = compared(by_program[in_time], by_true[in_time], rows["t_ns"][in_time])
        sure = complete_ns <= self.jump.t_ns - memory if low is None else low == high
        if low != high and not doubts:
            one, other = (
                model.decide(arrivals.at(clock), replace(limit, start=high))[in_time] for clock in (arrivals.t_ns, true)
            )
            least = _less(counts, compared(one, other, rows["t_ns"][in_time]))
            sure, counts = least == counts, least
        quality = "estimated" if doubts else "exact" if sure else "bounded"
        reason = "; ".join(doubts) or (
            ""
            if sure
            else (
                "recorded rows begin after its oldest state: the counts are lower bounds"
                if low is None
                else "the level of its bucket is known only within bounds: the counts are lower bounds"
            )
        )
        wall = self.jump.wall_ns or int(arrivals.t_ns[~after][-1] if (~after).any() else true[0])
        overlapped, skipped = windows(model.window(limit), wall, self.jump.size_ns)
        return self._outcome(quality, reason, len(in_time), counts, overlapped, skipped)

    def _held(
        self, model: Model, arrivals: Arrivals, limit: Limit, rows: np.ndarray, recorded: np.ndarray
    ) -> tuple[float | None, float | None]:
        """The smallest and largest possible level of a bucket at the first row; None if it is no bucket, or there are
        several, which count as full.
        """
        if not model.has_level or len(arrivals.starts) != 1:
            return None, None
        if not np.isnan(rows["remaining"][0]) and model.name.startswith("token bucket"):
            held = float(rows["remaining"][0]) + (float(arrivals.cost[0]) if recorded[0] or limit.patient else 0.0)
            return held, held
        return levels(model, arrivals, limit, recorded)


def _less(one: dict[str, int | None], other: dict[str, int | None]) -> dict[str, int | None]:
    """The smaller counts, and the larger ones beside them if they differ."""
    out = dict(one)
    for name in ("over_admitted", "wrongly_refused"):
        least, most = sorted((one[name] or 0, other[name] or 0))
        if least != most:
            out[name], out[f"{name}_most"] = least, most
    return out


def clocks(rows: np.ndarray, jump: Jump) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """(the program's clock at each row, true time, which rows read the clock after the jump, whether the wall time is
    unknown).

    Uses the program's reported time if there is one: it was read within the decision, so a row that ended after the
    jump may have read it before.
    """
    t, recorded = rows["t_ns"], rows["program_wall_ns"]
    took = np.where(rows["duration_ns"] > 0, rows["duration_ns"], 0)
    known = recorded != NULL_I64
    after = t - took >= jump.t_ns
    offset = recorded - t
    base = jump.wall_ns - jump.t_ns if jump.wall_ns else 0
    if known.any():
        if not jump.wall_ns:
            before = offset[known & (t < jump.t_ns)]
            base = (
                int(np.median(before))
                if len(before)
                else int(np.median(offset[known])) - (0 if jump.hypothetical else jump.size_ns)
            )
        if not jump.hypothetical:
            near = known & (t >= jump.t_ns) & ~after
            moved = np.abs(offset + took // 2 - base - jump.size_ns) < np.abs(offset + took // 2 - base)
            after = np.where(near, moved, after)
    shift = jump.size_ns * after
    read = np.where(known, recorded, t - took + base + (0 if jump.hypothetical else shift))
    if jump.hypothetical:
        return read + shift, read, after, not known.any() and not jump.wall_ns
    return read, read - shift, after, not known.any() and not jump.wall_ns
