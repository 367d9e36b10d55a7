"""How a binary's probes are held to their share of a thread's time. Pure: time and hits come from who asks.

All of the time (``both``, then ``alone`` at returns only) while they take no more than EXACT of a thread; else in
windows, which are short and far apart enough that the program loses no more than WINDOWS of its time to them, whatever
it does.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from agent.probes.beside.pace import BRIEF_NS, Busy

EXACT, WINDOWS = 0.10, 0.06
#: Probe time that may come at once, as at a program's start.
_BURST_NS = 80_000_000
_PERIOD_NS, _SHORTEST_NS, _LONGEST_NS = 1_000_000_000, 10_000_000, 400_000_000
#: Between windows that tell no more than that the probes set the pace.
_HELD_NS = 3_000_000_000
#: In a window, about.
_DECISIONS = 4_000
#: Of EXACT: below it, it is watched all of the time again, after so many windows in a row; after twice as many each
#: time that it relapses within a minute.
_CALM, _CALM_WINDOWS, _MOST_CALM_WINDOWS, _RELAPSE_NS = 0.6, 3, 96, 60_000_000_000


@dataclass
class Share:
    """both, alone: ns of probes a decision; alone is 0 where there is no such way. exact: ``EXACT``. mode: both, alone
    or windows. rate: decisions a second, as last seen. busy: takes its records.
    """

    both_ns: float
    alone_ns: float
    exact: float = EXACT
    mode: str = "both"
    rate: float = 0.0
    window_ns: int = _SHORTEST_NS
    busy: Busy = field(default_factory=Busy)
    _period_ns: int = _PERIOD_NS
    _debt_ns: float = 0.0
    _looked_ns: int = 0
    _begun_ns: int = 0
    _paid_ns: int = 0
    _calm: int = 0
    _needs: int = _CALM_WINDOWS
    _relapsed_ns: int = -_RELAPSE_NS

    @property
    def cost_ns(self) -> float:
        """Of a decision, as it is watched now."""
        return self.alone_ns if self.alone_ns and self.mode != "both" else self.both_ns

    @property
    def hit_ns(self) -> float:
        """Of a hit."""
        return self.alone_ns if self.alone_ns and self.mode != "both" else self.both_ns / 2

    @property
    def every(self) -> int:
        """Of windows, how far apart they are, in their length."""
        return max(2, round(self._period_ns / self.window_ns)) if self.mode == "windows" else 1

    def _load(self, hits: int, passed_ns: int, new_ns: int) -> float:
        """The share of a thread's time that so many hits took. new_ns: see ``Busy.load``."""
        return max(hits * self.hit_ns / max(passed_ns, 1), self.busy.load(self.cost_ns, new_ns))

    def begin(self, mode: str, now_ns: int) -> None:
        """It is watched so from now on."""
        if mode == "windows":
            again = now_ns - self._relapsed_ns < _RELAPSE_NS
            self._needs = min(2 * self._needs, _MOST_CALM_WINDOWS) if again else _CALM_WINDOWS
            self.window_ns, self._begun_ns, self._paid_ns = _SHORTEST_NS, now_ns - _PERIOD_NS, now_ns
            self._period_ns = _PERIOD_NS
        elif self.mode == "windows":
            self._relapsed_ns = now_ns
        self.mode, self._calm, self._debt_ns, self._looked_ns = mode, 0, 0.0, now_ns
        self.busy.again()

    def look(self, now_ns: int, hits: int) -> str:
        """While it is watched all of the time: hits since the last look -> the mode that is right."""
        passed = max(now_ns - self._looked_ns, 1)
        self._looked_ns = now_ns
        self._debt_ns = max(0.0, self._debt_ns + (self._load(hits, passed, passed) - self.exact) * passed)
        self.rate = hits * self.hit_ns / self.cost_ns / passed * 1e9
        if self._debt_ns <= _BURST_NS:
            return self.mode
        return "alone" if self.mode == "both" and 0 < self.rate * self.alone_ns / 1e9 < self.exact else "windows"

    def closed(
        self, asked_ns: int, watched_ns: int, until_ns: int, hits: int, late: int, decisions: int, held: bool = False
    ) -> str:
        """After a window that was asked for at asked_ns, and let go of at until_ns: hits until then, and later, while
        its probes went -> the mode that is right.
        held: its probes set the program's pace, so that windows say little.
        """
        self._period_ns = _HELD_NS if held else _PERIOD_NS
        opened = max(until_ns - asked_ns, 1)
        load = min(self._load(hits, opened, BRIEF_NS), 1.0)
        self.busy.again()
        self._paid_ns = max(self._paid_ns, asked_ns) + round(load * opened * (1 + late / max(hits, 1)) / WINDOWS)
        self.rate = decisions / max(watched_ns, 1) * 1e9
        length = min(_PERIOD_NS * WINDOWS / 2 / max(load, 0.01), 2 * self.window_ns)
        if decisions > _DECISIONS:
            length = min(length, watched_ns * _DECISIONS / decisions)
        self.window_ns = round(min(max(length, _SHORTEST_NS), _LONGEST_NS))
        calm = [
            m
            for m, ns in (("both", self.both_ns), ("alone", self.alone_ns))
            if ns and load * ns / self.cost_ns < self.exact * _CALM
        ]
        self._calm = self._calm + 1 if calm else 0
        return calm[0] if calm and self._calm >= self._needs else "windows"

    def next_ns(self, now_ns: int) -> int:
        """When the next window is to begin: anywhere in its second, so that what comes by the clock is not always
        missed.
        """
        period = self._period_ns
        self._begun_ns += period * max(1, -(-(now_ns - self._begun_ns - period) // period))
        return max(self._paid_ns, now_ns, self._begun_ns + round(random.random() * (period - self.window_ns)))
