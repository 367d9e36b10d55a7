"""Detects changes of the rate of MONOTONIC against MONOTONIC_RAW that adjtimex(2) does not explain. Pure.

The kernel derives both clocks from one counter, so their rates differ by exactly the discipline's value (freq and tick,
and more during a slew). A two-sided CUSUM (Page, 1954) sums the rest in nanoseconds: each interval adds its unexplained
drift less ALLOWANCE_PPB. A sum above THRESHOLD_NS plus the bounds of the readings at both ends is a change. A change of
1 ppm is found after about three seconds. It is reported when the new rate is known: two seconds later on a machine with
readings to 200 ns. Readings are bounds, not estimates, so noise cannot add up to a false alarm.
tests/unit/test_clock_slope.py finds none in an hour of recorded quiet data.
"""

from __future__ import annotations

from typing import NamedTuple

ALLOWANCE_PPB = 500
THRESHOLD_NS = 1_000
#: The least number of intervals after an alarm that give the new rate, and its required accuracy.
_SETTLE, _EXACT_PPB = 2, 250
#: A longer interval, after a suspend or a pause, is not used.
_LONGEST_NS = 5_000_000_000


class Bend(NamedTuple):
    """A change of rate. t_ns: its approximate start, CLOCK_BOOTTIME. Rates are MONOTONIC against
    MONOTONIC_RAW, in ppb.
    """

    t_ns: int
    before_ppb: int
    after_ppb: int


class Slope:
    """Takes samples about a second apart; ``add`` returns a change once it is certain."""

    def __init__(self) -> None:
        self._last: tuple[int, int, int, int | None] | None = None
        self._rest_ppb = 0.0
        self._restart(0, 0)

    def _restart(self, t_ns: int, err_ns: int) -> None:
        """Starts again. _sums: up and down. _since: when each sum was last zero, and the error bound of that reading.
        _settling: number, duration and drift of the intervals after an alarm.
        """
        self._sums = [0.0, 0.0]
        self._since = [(t_ns, err_ns), (t_ns, err_ns)]
        self._alarm: tuple[int, int] | None = None
        self._settling = (0, 0, 0.0)

    def skip(self) -> None:
        """Ignores the interval that ends with the next sample, because a known event happened in it."""
        self._last = None

    def add(self, t_ns: int, mono_raw_ns: int, err_ns: int, explained_ppb: int | None) -> Bend | None:
        """Adds a sample of MONOTONIC - MONOTONIC_RAW and its error bound. explained_ppb: the discipline's rate, None
        while it changes.
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
