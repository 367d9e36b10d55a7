"""How fast MONOTONIC runs against MONOTONIC_RAW: changes that adjtimex(2) does not account for. Pure.

The kernel derives both clocks from one counter, so their rates differ by exactly what the discipline says (freq and tick, and more
while an offset is slewed away). What is left is compared with what it was by a two-sided CUSUM (Page, 1954) in nanoseconds: each
interval adds its unexplained drift less ALLOWANCE_PPB, and above THRESHOLD_NS plus the bounds of both readings it is a change. A
change of 1 ppm is found after three to four seconds. Readings are bounds, not estimates, so noise alone cannot sum up to an alarm:
a false one needs the counter's own rates to wander by more than the allowance. tests/unit/test_clock_slope.py counts them on
recorded quiet data.
"""

from __future__ import annotations

from typing import NamedTuple

ALLOWANCE_PPB = 500
THRESHOLD_NS = 1_000
#: Intervals from which the rate at rest is learnt.
LEARN = 8
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
        self._rest: list[tuple[int, float]] = []
        self._rest_ppb = 0.0
        self._restart(0)

    def _restart(self, t_ns: int) -> None:
        """sums: up and down; since: (when, unexplained drift up to then) where each last was nothing."""
        self._drift = 0.0
        self._sums = [0.0, 0.0]
        self._since = [(t_ns, 0.0), (t_ns, 0.0)]

    def skip(self) -> None:
        """The interval that ends with the next sample says nothing: something that is known happened in it."""
        self._last = None

    def add(self, t_ns: int, mono_raw_ns: int, err_ns: int, explained_ppb: int | None) -> Bend | None:
        """A sample of MONOTONIC - MONOTONIC_RAW and its error bound. explained_ppb: the discipline's rate, None while it is in motion."""
        last, self._last = self._last, (t_ns, mono_raw_ns, err_ns, explained_ppb)
        if last is None or explained_ppb is None or last[3] != explained_ppb or not 0 < t_ns - last[0] <= _LONGEST_NS:
            return None
        apart = t_ns - last[0]
        drift = mono_raw_ns - last[1] - apart * explained_ppb / 1e9
        if len(self._rest) < LEARN:
            self._rest.append((apart, drift))
            self._rest_ppb = sum(d for _, d in self._rest) / sum(a for a, _ in self._rest) * 1e9
            self._restart(t_ns)
            return None
        drift -= apart * self._rest_ppb / 1e9
        self._drift += drift
        for side, sign in enumerate((1, -1)):
            self._sums[side] = max(0.0, self._sums[side] + sign * drift - apart * ALLOWANCE_PPB / 1e9)
            if not self._sums[side]:
                self._since[side] = t_ns, self._drift
            elif self._sums[side] > THRESHOLD_NS + err_ns + last[2]:
                return self._bent(side, t_ns, explained_ppb)
        return None

    def _bent(self, side: int, t_ns: int, explained_ppb: int) -> Bend:
        since, drift = self._since[side]
        before = self._rest_ppb
        self._rest_ppb += (self._drift - drift) / (t_ns - since) * 1e9
        self._restart(t_ns)
        return Bend(since, round(before) + explained_ppb, round(self._rest_ppb) + explained_ppb)
