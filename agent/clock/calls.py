"""Groups the kernel programs' records into calls on a clock. Pure: records in, calls out.

Up to three records belong to one call of one thread (bpf/clock.bpf.c): ``ask`` before it, ``woke`` inside it, ``libc``
at its return. Calls of different threads may overlap; calls of one thread cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.arch import host
from agent.clock import timex

if TYPE_CHECKING:
    import numpy as np

WOKE, ASK, LIBC = range(3)
LIBC_ADJTIME = 0xFFFE
#: By system call number.
NAMES = {
    **{host.number(name): name for name in ("clock_settime", "settimeofday", "adjtimex", "clock_adjtime")},
    LIBC_ADJTIME: "adjtimex",
}
NOISE_NS = 300
_UNKNOWN64, _UNKNOWN32 = -1, 0xFFFFFFFF
EINVAL = 22
#: None of these calls sleeps: records further apart than this belong to different calls.
CALL_NS = 1_000_000_000


@dataclass
class Call:
    """What is known of a call; None is unknown.

    before, after: TAI - BOOTTIME with its error bound. first_ns, last_ns: of its first and last record. t_ns: the best
    estimate of when the call took effect. All times are CLOCK_BOOTTIME.
    """

    record: np.void
    first_ns: int
    t_ns: int
    last_ns: int
    nr: int
    modes: int
    before: tuple[int, int] | None = None
    after: tuple[int, int] | None = None
    ret: int | None = None
    freq_after: int | None = None
    tick_after: int | None = None
    status_after: int | None = None
    requested_times: int = 0
    woke: bool = False
    libc: bool = False

    @property
    def tid(self) -> int:
        return int(self.record["proc"]["tid"])

    @property
    def via(self) -> str:
        return NAMES.get(self.nr, "none")

    @property
    def sets_time(self) -> bool:
        return self.via in ("clock_settime", "settimeofday")

    @property
    def steps(self) -> bool:
        """Whether the call sets the time or adds an offset at once."""
        return self.sets_time or (bool(self.modes & timex.SETOFFSET) and not self.modes & timex.ADJTIME)

    @property
    def asked_ns(self) -> int | None:
        """The requested target time (set calls) or offset; None if the call requests neither."""
        seconds, part, offset = int(self.record["asked_s"]), int(self.record["asked_part"]), int(self.record["offset"])
        if (
            seconds == part == _UNKNOWN64
            and self.nr != LIBC_ADJTIME
            and (self.sets_time or self.modes & timex.SETOFFSET)
        ):
            return None  # the caller's memory could not be read
        if self.via == "clock_settime":
            return seconds * 1_000_000_000 + part
        if self.via == "settimeofday" or self.nr == LIBC_ADJTIME:
            return seconds * 1_000_000_000 + part * 1000
        if self.modes & timex.ADJTIME:
            return offset * 1000
        if self.modes & timex.SETOFFSET:
            return seconds * 1_000_000_000 + part * (1 if self.modes & timex.NANO else 1000)
        if self.modes & timex.OFFSET:
            status = (
                int(self.record["status"]) if self.status_after is None else self.status_after
            )  # without ADJ_NANO the unit is microseconds
            return offset * (1 if self.modes & timex.NANO or status & timex.STA_NANO else 1000)
        if self.modes & timex.TAI:
            return int(self.record["constant"]) * 1_000_000_000
        return None

    def conclude(self) -> None:
        """Fills in ``ret`` if the return was not seen: invalid arguments from a privileged caller are refused."""
        r = self.record
        if (
            self.ret == 0
            and not self.libc
            and not self.woke
            and not timex.valid(self.modes, int(r["asked_part"]), int(r["freq"]), int(r["tick"]))
        ):
            self.ret = -EINVAL

    def takes(self, record: np.void) -> bool:
        """Whether a later record of the same thread belongs to this call."""
        source, t_ns = int(record["source"]), int(record["t_ns"])
        if source == LIBC:
            return not self.libc and int(record["start_ns"]) <= self.t_ns
        if self.libc or t_ns - self.last_ns > CALL_NS or int(record["nr"]) != self.nr:
            return False
        if source == WOKE:
            return not self.woke and self.ret != -1
        # The kernel checks ADJ_SETOFFSET twice inside one call. If the first check had been a call of its own, the
        # clock would have moved in between.
        again = _offset(record, "before")
        still = (
            self.before is None
            or again is None
            or abs(again[0] - self.before[0]) <= NOISE_NS + self.before[1] + again[1]
        )
        return (
            self.requested_times == 1
            and not self.woke
            and self.ret == 0
            and bool(self.modes & timex.SETOFFSET)
            and still
        )

    def add(self, record: np.void) -> None:
        source = int(record["source"])
        self.last_ns = int(record["t_ns"])
        if source == ASK:
            self.requested_times += 1
            self.t_ns = self.last_ns
            self.ret = int(record["ret"]) or self.ret
        elif source == WOKE:
            after = _offset(record, "after")
            if (
                self.before is not None
                and after is not None
                and abs(after[0] - self.before[0]) <= NOISE_NS + self.before[1] + after[1]
            ):
                return  # the watch woke in this call before the step, or the step is 0
            self.woke = True
        else:
            self.libc = True
            self.ret = int(record["ret"]) if not self.requested_times or not self.ret else self.ret
            self.freq_after, self.tick_after = _known(record["freq_after"]), _known(record["tick_after"])
            status = int(record["status_after"])
            self.status_after = None if status == _UNKNOWN32 else status
        self.before = self.before or _offset(record, "before")
        # the wake-up just after the step is more exact: another step may precede the return
        if source != LIBC or self.after is None:
            self.after = _offset(record, "after") or self.after


def _known(value: object) -> int | None:
    number = int(value)  # type: ignore[call-overload]
    return None if number == _UNKNOWN64 else number


def _offset(record: np.void, which: str) -> tuple[int, int] | None:
    value = _known(record[f"tai_boot_{which}_ns"])
    return None if value is None else (value, int(record[f"{which}_err_ns"]))


def group(records: np.ndarray) -> list[Call]:
    """The calls in records of ``struct clock_event``, in the order in which they began."""
    calls: list[Call] = []
    latest: dict[int, Call] = {}
    for record in records[records["t_ns"].argsort(kind="stable")]:
        tid = int(record["proc"]["tid"])
        call = latest.get(tid)
        if call is None or not call.takes(record):
            start = int(record["start_ns"])
            ret = 0 if int(record["source"]) == ASK else None
            call = latest[tid] = Call(record, start, start, start, int(record["nr"]), int(record["modes"]), ret=ret)
            calls.append(call)
        call.add(record)
    for call in calls:
        call.conclude()
    return sorted(calls, key=lambda c: c.t_ns)
