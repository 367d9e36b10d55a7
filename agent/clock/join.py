"""What moved a clock: the kernel programs' records and the agent's own readings, joined to one row for each event. Pure.

REALTIME - MONOTONIC and the frequency are followed as a state. A call explains how it changed between the call's before and after;
what no call explains is a row without an actor. Rows come once nothing that belongs to them can still be on its way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.clock import timex
from agent.clock.calls import NOISE_NS, Call, group
from agent.clock.sample import Reading
from agent.clock.timex import Timex

if TYPE_CHECKING:
    import numpy as np

#: A call's records are drained within this time of one another; a thread that lost its processor inside a call may take longer.
SETTLE_NS = 50_000_000
#: From the step to the waker's record, at most, on an idle machine.
_REACH_NS = 100_000
_REMEMBER_NS = 10_000_000_000


@dataclass
class Change:
    """A row of ``clock_change`` to be; None is unknown. record: the wire record with the actor. boot_mono_ns for the history's cut."""

    t_ns: int
    kind: str
    record: np.void | None = None
    via: str = "none"
    modes: str = ""
    requested_ns: int | None = None
    size_ns: int | None = None
    err_ns: int | None = None
    real_mono_before_ns: int | None = None
    real_mono_after_ns: int | None = None
    freq_before_ppb: int | None = None
    freq_after_ppb: int | None = None
    ret: int | None = None
    cut_err_ns: int = 0


@dataclass
class Join:
    """The clocks' state as followed so far, and the records that wait. ``start`` sets the state.

    late: records that came after the row of their call, which they would only have completed.
    """

    reading: Reading
    timex: Timex
    waiting: list[np.ndarray] = field(default_factory=list)
    late: int = 0

    def __post_init__(self) -> None:
        self._real_mono, self._err = self.reading.real_mono_ns, self.reading.err_ns
        self._freq, self._tick, self._status, self._tai_s = self._discipline(self.timex)
        self._tai_real = self._tai_of(self.reading)
        self._reported: dict[int, int] = {}
        self._odd_since: int | None = None
        self._hint: tuple[int, int] | None = None

    @staticmethod
    def _discipline(state: Timex) -> tuple[int, int, int, int]:
        return state.freq_scaled, state.tick_us, state.status, state.tai_s

    @staticmethod
    def _tai_of(reading: Reading) -> int:
        return round((reading.tai_mono_ns - reading.real_mono_ns) / 1e9) * 1_000_000_000

    def feed(self, records: np.ndarray) -> None:
        """Takes records of ``struct clock_event``, shape (n,)."""
        self.waiting.append(records)

    def hint(self, t_ns: int, real_mono_ns: int) -> None:
        """When the clock watch saw REALTIME - MONOTONIC become this: dates a step that no kernel program saw."""
        self._hint = (t_ns, real_mono_ns)

    @property
    def pending(self) -> bool:
        """Whether rows may come without further input, once they have settled."""
        return bool(self.waiting) or self._odd_since is not None

    def settle(self, reading: Reading, state: Timex) -> list[Change]:
        """The changes that are complete at ``reading``, a fresh one, in order of time."""
        import numpy as np

        calls: list[Call] = []
        if self.waiting:
            records = np.concatenate(self.waiting)
            calls = group(records)
            done = 0
            while done < len(calls) and calls[done].last_ns <= reading.t_ns - SETTLE_NS:
                done += 1
            held = {int(c.record["proc"]["tid"]): c.t_ns for c in reversed(calls[done:])}
            keep = [i for i, r in enumerate(records) if held.get(int(r["proc"]["tid"]), 1 << 62) <= int(r["t_ns"])]
            self.waiting = [records[keep]] if keep else []
            calls, following = calls[:done], calls[done:]
        else:
            following = []
        out = []
        for i, call in enumerate(calls):
            later = calls[i + 1] if i + 1 < len(calls) else following[0] if following else None
            out += self._explain(call, later, reading, state)
        if calls or following:
            self._odd_since = None
        else:
            out += self._unexplained(reading, state)
        self.reading, self.timex = reading, state
        return out

    def _explain(self, call: Call, later: Call | None, reading: Reading, state: Timex) -> list[Change]:
        tid = int(call.record["proc"]["tid"])
        if self._reported.get(tid, -1) >= call.t_ns:  # its thread lost the processor before it returned
            self.late += 1
            return []
        self._reported = {k: t for k, t in self._reported.items() if call.t_ns - t < _REMEMBER_NS}
        self._reported[tid] = call.last_ns
        out = []
        before = self._real(call.before)
        if before is not None and abs(before[0] - self._real_mono) > self._err + before[1] + NOISE_NS:
            out.append(self._step(call.t_ns, *before))
        if call.modes & timex.TAI and call.ret == 0 and call.record["constant"] >= 0:
            self._tai_real = int(call.record["constant"]) * 1_000_000_000
        after = self._real(call.after)
        if after is None and later is not None:
            after = self._real(later.before) or self._expected(call)
        if after is None:
            after = (reading.real_mono_ns, reading.err_ns)
        change = self._change(call, after)
        self._follow(call, change, later, state)
        if self._worth(call, change):
            out.append(change)
        return out

    def _real(self, tai_mono: tuple[int, int] | None) -> tuple[int, int] | None:
        return None if tai_mono is None else (tai_mono[0] - self._tai_real, tai_mono[1])

    def _expected(self, call: Call) -> tuple[int, int] | None:
        """Where another call follows and the kernel cannot read TAI (before 6.1): what was asked."""
        asked = call.asked_ns
        if asked is None or (call.ret is not None and call.ret < 0):
            return None
        if call.sets_time:
            return asked - (call.t_ns - self.reading.boot_mono_ns), call.last_ns - call.t_ns + _REACH_NS
        if call.steps:
            return self._real_mono + asked, self._err
        return None

    def _step(self, t_ns: int, real_mono: int, err: int) -> Change:
        """A step that no call explains; becomes the state."""
        change = Change(t_ns, "step", size_ns=real_mono - self._real_mono, err_ns=err + self._err, real_mono_before_ns=self._real_mono,
                        real_mono_after_ns=real_mono, freq_before_ppb=self._ppb(), freq_after_ppb=self._ppb(), cut_err_ns=err)  # fmt: skip
        self._real_mono, self._err = real_mono, err
        return change

    def _ppb(self) -> int:
        return timex.freq_ppb(self._freq, self._tick)

    def _change(self, call: Call, after: tuple[int, int]) -> Change:
        size, err = after[0] - self._real_mono, after[1] + self._err
        moved = abs(size) > err + NOISE_NS
        failed = call.ret is not None and call.ret < 0
        stepped = moved or (call.steps and not failed)
        change = Change(
            call.t_ns, self._kind(call, moved), call.record, call.via, timex.mode_names(call.modes), call.asked_ns, size, err, self._real_mono,
            after[0], self._ppb(), ret=call.ret, cut_err_ns=after[1],
        )  # fmt: skip
        if moved and call.ret is None:
            change.ret = 0
        if stepped and call.sets_time and change.requested_ns is not None:
            instant = change.requested_ns - after[0] + self.reading.boot_mono_ns
            if call.t_ns - SETTLE_NS <= instant <= call.last_ns:
                change.t_ns = instant
        if stepped:
            self._real_mono, self._err = after
        else:
            change.real_mono_after_ns, change.size_ns = self._real_mono, 0
        return change

    @staticmethod
    def _kind(call: Call, moved: bool) -> str:
        if moved or call.steps:
            return "step"
        if call.modes & timex.ADJTIME or (call.asked_ns is not None and call.modes & timex.OFFSET):
            return "slew"
        if call.modes & timex.TAI:
            return "tai"
        if call.modes & (timex.FREQUENCY | timex.TICK):
            return "frequency"
        if call.modes & timex.STATUS and int(call.record["status"]) & (timex.STA_INS | timex.STA_DEL):
            return "leap"
        return "unsync"

    def _follow(self, call: Call, change: Change, later: Call | None, state: Timex) -> None:
        """The discipline's state after the call: what it returned, else what was asked, else what is read now."""
        previous = self._status
        if call.ret is None or call.ret >= 0:
            if call.freq_after is not None and call.tick_after is not None:
                self._freq, self._tick = call.freq_after, call.tick_after
                self._status = self._status if call.status_after is None else call.status_after
            elif later is None:
                self._freq, self._tick, self._status, self._tai_s = self._discipline(state)
            else:
                self._freq = int(call.record["freq"]) if call.modes & timex.FREQUENCY else self._freq
                self._tick = int(call.record["tick"]) if call.modes & timex.TICK else self._tick
                self._status = int(call.record["status"]) if call.modes & timex.STATUS else self._status
            self._tai_s = self._tai_real // 1_000_000_000
        change.freq_after_ppb = self._ppb()
        self._flags_changed = bool((previous ^ self._status) & (timex.STA_INS | timex.STA_DEL | timex.STA_UNSYNC))

    def _worth(self, call: Call, change: Change) -> bool:
        """A status that is written as it was moves nothing; everything else did, or tried to."""
        return change.kind not in ("leap", "unsync") or self._flags_changed or (call.ret is not None and call.ret < 0)

    def _unexplained(self, reading: Reading, state: Timex) -> list[Change]:
        """What moved without a call that was seen, once no record about it can still be on its way."""
        moved = abs(reading.real_mono_ns - self._real_mono) > self._err + reading.err_ns + NOISE_NS
        freq, tick, status, tai_s = self._discipline(state)
        flags = (status ^ self._status) & (timex.STA_INS | timex.STA_DEL | timex.STA_UNSYNC)
        slope = (freq, tick) != (self._freq, self._tick)
        if not (moved or slope or flags or tai_s != self._tai_s):
            self._odd_since = None
            return []
        if self._odd_since is None:
            self._odd_since = reading.t_ns
        if reading.t_ns - self._odd_since < SETTLE_NS:
            return []
        since, self._odd_since = self._odd_since, None
        out = []
        if moved:
            if self._hint is not None and abs(self._hint[1] - reading.real_mono_ns) <= NOISE_NS:
                since = self._hint[0]
            out.append(self._step(since, reading.real_mono_ns, reading.err_ns))
        before = self._ppb()
        self._freq, self._tick, self._status = freq, tick, status
        for seen, kind in ((slope, "frequency"), (tai_s != self._tai_s, "tai"), (bool(flags), self._flag_kind(flags))):
            if seen:
                out.append(Change(since, kind, size_ns=0, err_ns=reading.err_ns, real_mono_before_ns=self._real_mono,
                                  real_mono_after_ns=self._real_mono, freq_before_ppb=before, freq_after_ppb=self._ppb()))  # fmt: skip
        self._tai_s, self._tai_real = tai_s, self._tai_of(reading)
        return out

    @staticmethod
    def _flag_kind(flags: int) -> str:
        return "unsync" if flags & timex.STA_UNSYNC else "leap"
