"""How fast MONOTONIC runs against MONOTONIC_RAW: changes that adjtimex(2) does not account for. Pure.

The kernel derives both clocks from one counter, so their rates differ by exactly what the discipline says (freq and
tick, and more while an offset is slewed away). What is left is summed by a two-sided CUSUM (Page, 1954) in nanoseconds:
each interval adds its unexplained drift less ALLOWANCE_PPB, and above THRESHOLD_NS plus the bounds of the readings at
both ends it is a change. One of 1 ppm is found after some three seconds, and reported when its new rate is known, on a
machine that reads its clocks to 200 ns two seconds later. Readings are bounds, not estimates, so noise cannot sum up to
an alarm: a false one needs the two rates themselves to wander apart by more than the allowance.
tests/unit/test_clock_slope.py counts them in an hour of recorded quiet data: none.
"""

from __future__ import annotations

from typing import NamedTuple

ALLOWANCE_PPB = 500
THRESHOLD_NS = 1_000
#: Intervals after an alarm from which the new rate is taken, at least, and how exact it must be: the change itself lies
#: before them.
_SETTLE, _EXACT_PPB = 2, 250
#: A longer one, after a suspend or a pause, says little about now.
_LONGEST_NS = 5_000_000_000


class Bend(NamedTuple):
    """A change of rate. t_ns: from about when on, CLOCK_BOOTTIME; rates of MONOTONIC against MONOTONIC_RAW, in ppb."""

    t_ns: int
    before_ppb: int
    after_ppb: int


class Slope:
    """Takes samples about a second apart; ``add`` returns a change when one is certain."""

    def __init__(self) -> None:
        self._last: tuple[int, int, int, int | None] | None = None
        self._rest_ppb = 0.0
        self._restart(0, 0)

    def _restart(self, t_ns: int, err_ns: int) -> None:
        """sums: up and down; since: when each was last nothing, and that reading's bound; settling: intervals, their
        time and drift.
        """
        self._sums = [0.0, 0.0]
        self._since = [(t_ns, err_ns), (t_ns, err_ns)]
        self._alarm: tuple[int, int] | None = None
        self._settling = (0, 0, 0.0)

    def skip(self) -> None:
        """The interval that ends with the next sample says nothing: something that is known happened in it."""
        self._last = None

    def add(self, t_ns: int, mono_raw_ns: int, err_ns: int, explained_ppb: int | None) -> Bend | None:
        """A sample of MONOTONIC - MONOTONIC_RAW and its error bound. explained_ppb: the discipline's rate, None while
        it is in motion.
        """
        last, self._last = self._last, (t_ns, mono_raw_ns, err_ns, explained_ppb)
        if last is None or explained_ppb is None or last[3] != explained_ppb or not 0 < t_ns - last[0] <= _LONGEST_NS:
            self._restart(t_ns, err_ns)
            return None
        apart = t_ns - last[0]
        drift = mono_raw_ns - last[1] - apart * (explained_ppb + self._rest_ppb) / 1e9
        if self._alarm is not None:
            return self._settle(self._alarm, t_ns, apart, drift, err_ns, explained_ppb)
        for side, sign in enumerate((1, -1)):
            self._sums[side] = max(0.0, self._sums[side] + sign * drift - apart * ALLOWANCE_PPB / 1e9)
            if not self._sums[side]:
                self._since[side] = t_ns, err_ns
            elif self._sums[side] > THRESHOLD_NS + err_ns + self._since[side][1]:
                self._alarm = self._since[side][0], err_ns
        return None

    def _settle(
        self, alarm: tuple[int, int], t_ns: int, apart: int, drift: float, err_ns: int, explained_ppb: int
    ) -> Bend | None:
        count, time, drifted = self._settling = (
            self._settling[0] + 1,
            self._settling[1] + apart,
            self._settling[2] + drift,
        )
        if count < _SETTLE or (alarm[1] + err_ns) / time * 1e9 > _EXACT_PPB:
            return None
        before = self._rest_ppb
        self._rest_ppb += drifted / time * 1e9
        self._restart(t_ns, err_ns)
        return Bend(alarm[0], round(before) + explained_ppb, round(self._rest_ppb) + explained_ppb)
