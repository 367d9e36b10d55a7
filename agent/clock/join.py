"""Joins the kernel programs' records and the agent's readings to one row for each clock change. Pure.

The state is REALTIME - BOOTTIME (only steps and leap seconds move it), BOOTTIME - MONOTONIC (only suspends), TAI -
REALTIME and the discipline. A call explains a change between its before and after. A change that no call explains is a
row without an actor. A row is returned when no record that belongs to it can still arrive.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.clock import timex
from agent.clock.calls import CALL_NS, EINVAL, NOISE_NS, Call, group
from agent.clock.change import Change, flag_kind, is_worth, kind_of, new_slew, rate_kind, tai_real_ns
from agent.clock.sample import Reading
from agent.clock.timex import Timex

if TYPE_CHECKING:
    import numpy as np

#: A call's records arrive within this time of one another, unless its thread lost the CPU inside the call.
SETTLE_NS = 50_000_000
#: Upper bound of the time from a step to the waker's record, on an idle machine.
_REACH_NS = 100_000
_REMEMBER_NS, _SECOND_NS = 10_000_000_000, 1_000_000_000
#: The largest time that can be set: an int64 of ns, less thirty years of uptime (include/linux/time64.h).
_SETTOD_MOST_NS = (9_223_372_036 - 30 * 365 * 86_400) * _SECOND_NS


@dataclass
class Join:
    """The state of the clocks, starting at ``reading`` and ``timex``, and the records that wait.

    late: number of records that came after the row of their call.
    """

    reading: Reading
    timex: Timex
    waiting: list[np.ndarray] = field(default_factory=list)
    late: int = 0

    def __post_init__(self) -> None:
        self._real_boot, self._err, self._boot_mono = (
            self.reading.real_boot_ns,
            self.reading.err_ns,
            self.reading.boot_mono_ns,
        )
        self._freq, self._tick, self._status, self._tai_s = self.timex.discipline
        self._left = self.timex.offset_ns, self.timex.adjust_ns
        self._tai_real = tai_real_ns(self.reading)
        self._reported: dict[int, tuple[int, bool]] = {}
        self._differs_since: int | None = None
        self._hint: tuple[int, int] | None = None

    def feed(self, records: np.ndarray) -> None:
        """Takes records of ``struct clock_event``, shape (n,)."""
        self.waiting.append(records)

    def hint(self, t_ns: int, real_mono_ns: int) -> None:
        """The clock watch saw REALTIME - MONOTONIC take this value at t_ns. This dates changes that no kernel program
        saw.
        """
        self._hint = (t_ns, real_mono_ns)

    @property
    def pending(self) -> bool:
        """Whether rows may follow without further input."""
        return bool(self.waiting) or self._differs_since is not None

    def settle(self, reading: Reading, state: Timex) -> list[Change]:
        """The changes that are complete at ``reading``, in order of time. All kernel records from before ``reading``
        must have been fed.
        """
        import numpy as np

        calls: list[Call] = []
        if self.waiting:
            records = np.concatenate(self.waiting)
            calls = group(records)
            done = 0
            while (
                done < len(calls)
                and calls[done].last_ns <= reading.t_ns - SETTLE_NS
                and not self._under_way(calls[done], calls, reading)
            ):
                done += 1
            held = {c.tid: c.first_ns for c in reversed(calls[done:])}
            keep = [i for i, r in enumerate(records) if held.get(int(r["proc"]["tid"]), 1 << 62) <= int(r["t_ns"])]
            self.waiting = [records[keep]] if keep else []
            calls, following = calls[:done], calls[done:]
        else:
            following = []
        out = self._suspended(reading)
        if not any(c.steps or c.modes & timex.TAI for c in calls + following):
            out += self._leapt(reading)
        for i, call in enumerate(calls):
            later = calls[i + 1] if i + 1 < len(calls) else following[0] if following else None
            out += self._explain(call, later, reading, state)
        if calls or following:
            self._differs_since = None
            self._left = state.offset_ns, state.adjust_ns
        else:
            out += self._unexplained(reading, state)
        self.reading, self.timex = reading, state
        return out

    def _under_way(self, call: Call, calls: list[Call], reading: Reading) -> bool:
        """Whether the call's thread seems to have lost the CPU between the privilege check and a visible step."""
        by, bound = self._requested_by(call), self._err + reading.err_ns + NOISE_NS
        if by is None or reading.t_ns - call.last_ns > CALL_NS or self._is_refused(call):
            return False
        if abs(by) <= bound or abs(reading.real_boot_ns - self._real_boot) > bound:
            return False
        return not any(c.tid == call.tid and c.t_ns > call.t_ns for c in calls)

    def _requested_by(self, call: Call) -> int | None:
        """The size of the step that a permitted call requests, if nothing else of the call was seen; None
        for others.
        """
        requested = call.asked_ns
        if not call.steps or not call.requested_times or call.ret or call.woke or call.libc or requested is None:
            return None
        return requested - call.t_ns - self._real_boot if call.sets_time else requested

    def _is_late(self, call: Call) -> bool:
        """Whether the record completes a call that already has its row: by its time, or because a new call would begin
        with a privilege check.
        """
        last_ns, requested_only = self._reported.get(call.tid, (-1, False))
        return last_ns >= call.t_ns or (requested_only and not call.requested_times and call.t_ns - last_ns < CALL_NS)

    def _explain(self, call: Call, later: Call | None, reading: Reading, state: Timex) -> list[Change]:
        if self._is_late(call):  # its thread lost the CPU before it returned
            self.late += 1
            return []
        self._reported = {k: r for k, r in self._reported.items() if call.t_ns - r[0] < _REMEMBER_NS}
        self._reported[call.tid] = call.last_ns, bool(call.requested_times) and not call.woke and not call.libc
        out = []
        before = self._real(call.before)
        if before is not None and abs(before[0] - self._real_boot) > self._err + before[1] + NOISE_NS:
            out.append(self._step(call.t_ns, "step", *before))
        if call.modes & timex.TAI and call.ret == 0 and call.record["constant"] >= 0:
            self._tai_real = int(call.record["constant"]) * _SECOND_NS
        after = self._real(call.after)
        if after is None and later is not None and later.t_ns <= reading.t_ns:
            after = self._real(later.before) or self._expected(call)
        if after is None:
            after = (reading.real_boot_ns, reading.err_ns)
        change = self._change(call, after)
        self._follow(call, change, later, state)
        if is_worth(call, change):
            out.append(change)
        return out

    def _real(self, tai_boot: tuple[int, int] | None) -> tuple[int, int] | None:
        return None if tai_boot is None else (tai_boot[0] - self._tai_real, tai_boot[1])

    def _expected(self, call: Call) -> tuple[int, int] | None:
        """The requested result, if another call follows and the kernel cannot read TAI (before 6.1); None
        if unknown.
        """
        requested = call.asked_ns
        if (call.modes and not call.steps) or (call.ret is not None and call.ret < 0) or self._is_refused(call):
            return self._real_boot, self._err
        if requested is None:
            return None
        if call.sets_time:
            return requested - call.t_ns, call.last_ns - call.t_ns + _REACH_NS
        return self._real_boot + requested, self._err

    def _is_refused(self, call: Call) -> bool:
        """Whether it requests a time that the kernel refuses: before the boot by MONOTONIC, or too far ahead
        (TIME_SETTOD_SEC_MAX).

        The watch may wake inside such a call too, because the kernel cancels timers before it returns the error.
        """
        requested = call.asked_ns
        if not call.steps or requested is None:
            return False
        time_ns = requested if call.sets_time else self._real_boot + call.t_ns + requested
        return not call.t_ns - self._boot_mono <= time_ns < _SETTOD_MOST_NS

    def _row(self, t_ns: int, kind: str, before: tuple[int, int], err_ns: int | None) -> Change:
        """A row without an actor. before: the earlier REALTIME - BOOTTIME and BOOTTIME - MONOTONIC; the state has the
        new ones.
        """
        was, now, ppb = sum(before), self._real_boot + self._boot_mono, self._ppb()
        return Change(
            t_ns,
            kind,
            size_ns=now - was,
            err_ns=err_ns,
            real_mono_before_ns=was,
            real_mono_after_ns=now,
            freq_before_ppb=ppb,
            freq_after_ppb=ppb,
            cut_err_ns=self._err,
        )

    def _step(self, t_ns: int, kind: str, real_boot: int, err: int) -> Change:
        """A row for a move of REALTIME that no call explains; updates the state."""
        before, bound = (self._real_boot, self._boot_mono), err + self._err
        self._real_boot, self._err = real_boot, err
        return self._row(t_ns, kind, before, bound)

    def _dated(self, reading: Reading, otherwise: int) -> int:
        """When REALTIME - MONOTONIC took its present value, if the watch saw it, else ``otherwise``."""
        if self._hint is not None and abs(self._hint[1] - reading.real_mono_ns) <= NOISE_NS + reading.err_ns:
            return self._hint[0]
        return otherwise

    def _suspended(self, reading: Reading) -> list[Change]:
        """A suspend: BOOTTIME counts it, MONOTONIC does not. REALTIME counts it as BOOTTIME does."""
        if abs(reading.boot_mono_ns - self._boot_mono) <= self.reading.err_ns + reading.err_ns + NOISE_NS:
            return []
        before, self._boot_mono = (self._real_boot, self._boot_mono), reading.boot_mono_ns
        return [self._row(self._dated(reading, reading.t_ns), "suspend", before, self.reading.err_ns + reading.err_ns)]

    def _leapt(self, reading: Reading) -> list[Change]:
        """A leap second: the kernel moves REALTIME and TAI - REALTIME by opposite amounts, so that TAI stays. No call
        does that.
        """
        tai_real, moved = tai_real_ns(reading), reading.real_boot_ns - self._real_boot
        by = self._tai_real - tai_real
        if abs(by) != _SECOND_NS or abs(moved - by) > self._err + reading.err_ns + NOISE_NS:
            return []
        self._tai_real, self._tai_s = tai_real, self._tai_s - by // _SECOND_NS
        return [self._step(self._dated(reading, reading.t_ns), "leap", reading.real_boot_ns, reading.err_ns)]

    def _ppb(self) -> int:
        return timex.freq_ppb(self._freq, self._tick)

    def _change(self, call: Call, after: tuple[int, int]) -> Change:
        size, err = after[0] - self._real_boot, after[1] + self._err
        moved = abs(size) > err + NOISE_NS
        ret, by = call.ret, self._requested_by(call)
        never = by is not None and abs(by) > max(err + NOISE_NS, SETTLE_NS if call.sets_time else 0)
        if not moved and not ret and not call.libc and (never or self._is_refused(call)):
            ret = -EINVAL  # privileged but no step: of the remaining checks only this one can fail
        failed = ret is not None and ret < 0
        stepped = moved or (
            call.steps and not failed and call.asked_ns != 0
        )  # chronyd requests a step of 0 to test its privilege
        change = Change(
            call.t_ns,
            kind_of(call, moved),
            call.record,
            call.via,
            timex.mode_names(call.modes),
            call.asked_ns,
            size,
            err,
            self._real_boot + self._boot_mono,
            after[0] + self._boot_mono,
            self._ppb(),
            ret=ret,
            cut_err_ns=after[1],
        )
        if moved and ret is None:
            change.ret = 0
        if stepped and call.sets_time and change.requested_ns is not None:
            instant = change.requested_ns - after[0]
            if call.t_ns - SETTLE_NS <= instant <= call.last_ns:
                change.t_ns = instant
        if stepped:
            self._real_boot, self._err = after
        else:
            change.real_mono_after_ns, change.size_ns = change.real_mono_before_ns, 0
        return change

    def _follow(self, call: Call, change: Change, later: Call | None, state: Timex) -> None:
        """Updates the discipline's state by the call: its result, else its request, else the present reading."""
        previous = self._status
        if call.ret is None or call.ret >= 0:
            if call.freq_after is not None and call.tick_after is not None:
                self._freq, self._tick = call.freq_after, call.tick_after
                self._status = self._status if call.status_after is None else call.status_after
            elif later is None:
                self._freq, self._tick, self._status, self._tai_s = state.discipline
            else:
                self._freq = int(call.record["freq"]) if call.modes & timex.FREQUENCY else self._freq
                self._tick = int(call.record["tick"]) if call.modes & timex.TICK else self._tick
                self._status = int(call.record["status"]) if call.modes & timex.STATUS else self._status
                if change.size_ns and change.kind == "step":  # a step clears the discipline
                    self._status |= timex.STA_UNSYNC
            self._tai_s = self._tai_real // _SECOND_NS
        change.freq_after_ppb = self._ppb()
        if change.kind == "frequency":
            change.kind = rate_kind(change.freq_before_ppb, change.freq_after_ppb)
        flags = (previous ^ self._status) & timex.FLAGS
        if flags:
            change.modes += " " + timex.flag_names(previous, self._status)
        if change.kind == "unsync":  # the call wrote the status or the error bounds
            change.kind = flag_kind(flags or int(call.record["status"]) & timex.LEAP_FLAGS)
            change.flags = flags

    def _unexplained(self, reading: Reading, state: Timex) -> list[Change]:
        """Moves without a call, once no record about them can still arrive."""
        moved = abs(reading.real_boot_ns - self._real_boot) > self._err + reading.err_ns + NOISE_NS
        freq, tick, status, tai_s = state.discipline
        flags = (status ^ self._status) & timex.FLAGS
        slope = (freq, tick) != (self._freq, self._tick)
        slew = new_slew(state, self._left)
        if not (moved or slope or flags or slew or tai_s != self._tai_s):
            self._differs_since = None
            self._left = state.offset_ns, state.adjust_ns
            return []
        if self._differs_since is None:
            self._differs_since = reading.t_ns
        if reading.t_ns - self._differs_since < SETTLE_NS:
            return []
        since, self._differs_since = self._differs_since, None
        out = []
        if moved:
            out.append(self._step(self._dated(reading, since), "step", reading.real_boot_ns, reading.err_ns))
        before, names = self._ppb(), timex.flag_names(self._status, status)
        self._freq, self._tick, self._status = freq, tick, status
        rate = rate_kind(before, self._ppb())
        self._left = state.offset_ns, state.adjust_ns
        still = self._real_boot, self._boot_mono
        for seen, kind in (
            (slope, rate),
            (bool(slew), "slew"),
            (tai_s != self._tai_s, "tai"),
            (bool(flags), flag_kind(flags)),
        ):
            if seen:
                row = self._row(since, kind, still, reading.err_ns)
                row.freq_before_ppb = before
                row.requested_ns = {"slew": slew or None, "tai": tai_s * _SECOND_NS}.get(kind)
                row.modes = names if kind in ("unsync", "leap") else ""
                out.append(row)
        self._tai_s, self._tai_real = tai_s, tai_real_ns(reading)
        return out
