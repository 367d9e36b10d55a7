"""How often limiters decide, and how long they usually pause: the basis for finding limiters that fell silent.

A pause is allowed up to the largest of
- ``silence_ns``;
- three times the longest remembered pause. Remembered is the longest of each of the last ``_PAUSES`` seconds with
  decisions, however far apart;
- the pause that comes once in ``_SECONDS`` such seconds, if the longest pauses of seconds follow Gumbel's distribution,
  as for random arrivals (from their median and upper quartile): once in 2,700 years for a limiter that decides each
  second.
So a limiter that works by the hour may pause for hours. A limiter that decided less and less before it fell silent has
ended normally, which is checked, too.
"""

from __future__ import annotations

import math

import numpy as np

from agent.correlate.episode import Episode
from agent.correlate.rows import OfSecond, columns_of, shared
from agent.correlate.series import SECONDS
from agent.correlate.thresholds import SECOND, CorrelatorConfig
from agent.correlate.watch import Watch
from agent.correlate.words import process, text

#: Columns that a symptom of silence reads.
READS = {"limiter_decision": ("limiter_id", "library")}
_PAUSES, _LEAST_PAUSES = 512, 12
_RATIO = 3.0
_SECONDS = 8.64e10
_TAIL = math.log(_SECONDS)
_QUARTILE = 1 / (
    math.log(math.log(2)) - math.log(math.log(4 / 3))
)  # Gumbel's scale in units of upper quartile - median
_BEFORE_S = 3  # seconds in which it must have decided as often as usual, or half as often
_FADED = 0.5
_LATE = 6


class PauseWatch(Watch):
    """One subject is one limiter of all processes of one name: a restart continues it."""

    metrics = ("n",)

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self.names: dict[int, tuple[str, str, str]] = {}
        self.who: dict[int, tuple[int, int]] = {}  # by slot: the process that decided last
        most = config.subjects
        self.first_ns, self.last_ns = np.zeros(most, np.int64), np.zeros(most, np.int64)
        self.resumed_ns = np.zeros(most, np.int64)  # its first decision of the second
        self._pauses = np.zeros((most, _PAUSES))  # a slot's row is written when the slot is taken: 1 MB if all are
        self._at = np.zeros(most, np.int64)
        self.over: dict[
            int, tuple[int, int, tuple[int, int]]
        ] = {}  # by slot: a pause that was too long and is over, and its process

    def fill(self, second: int, rows: OfSecond) -> np.ndarray:
        self.over = {}
        if len(rows["limiter_decision"]):
            self._decided(second, rows)
        return np.array(sorted(self.names), np.int64)

    def _decided(self, second: int, rows: OfSecond) -> None:
        decisions = rows["limiter_decision"]
        first, group = shared(rows, "limiter_decision", "limiter_id", "comm")
        order = np.lexsort((decisions["t_ns"], group))
        t_ns, limiter_of = decisions["t_ns"][order], group[order]
        begins = np.flatnonzero(np.append(True, limiter_of[1:] != limiter_of[:-1]))
        ends = np.append(begins[1:], len(limiter_of)) - 1
        names = columns_of(decisions, first, "limiter_id", "comm", "library")
        slots = np.array(
            [self._slot(name, second, at) for name, at in zip(names, t_ns[begins].tolist(), strict=True)], np.int64
        )
        fits = slots >= 0
        pause = np.zeros(len(t_ns), np.int64)
        np.subtract(t_ns[1:], t_ns[:-1], out=pause[1:])
        pause[begins[fits]] = t_ns[begins[fits]] - self.last_ns[slots[fits]]
        longest = np.maximum.reduceat(pause, begins)[fits]
        slots, begins, ends = slots[fits], begins[fits], ends[fits]
        who, too = columns_of(decisions, order[ends], "pid", "proc_start_ns"), longest > self.config.silence_ns
        too[too] = longest[too] > self.allowed_ns(slots[too])
        for slot, too_long, (pid, start_ns), begun in zip(
            slots.tolist(), too.tolist(), who, t_ns[begins].tolist(), strict=True
        ):
            if too_long:
                self.over[slot] = (int(self.last_ns[slot]), begun, self.who[slot])
            self.who[slot] = pid, start_ns // 10_000_000
        known, usual = slots, longest
        if len(self._active_slots):  # unusual pauses are not remembered
            known = slots[~np.isin(slots, self._active_slots)]
            usual = longest[np.isin(slots, known)]
        self._pauses[known, self._at[known] % _PAUSES] = usual
        self._at[known] += 1
        self.resumed_ns[slots], self.last_ns[slots] = t_ns[begins], t_ns[ends]
        self.series.put(second, slots, n=(ends - begins + 1).astype(np.float64))

    def _slot(self, name_bytes: tuple[bytes, bytes, bytes], second: int, t_ns: int) -> int:
        name = text(name_bytes[0]), text(name_bytes[1]), text(name_bytes[2])
        slot = self.series.slot(name[:2], second)
        if slot >= 0 and self.names.get(slot, ("", ""))[:2] != name[:2]:
            self.names[slot] = name
            self.first_ns[slot] = self.last_ns[slot] = t_ns
            self._pauses[slot], self._at[slot] = np.nan, 0
        return slot

    def allowed_ns(self, slots: np.ndarray) -> np.ndarray:
        """The longest allowed pause of each; infinite if too little is known."""
        if not len(slots):
            return np.empty(0)
        pauses = np.sort(self._pauses[slots], axis=1)  # NaN sorts last
        n = np.minimum(self._at[slots], _PAUSES)
        last = np.maximum(n - 1, 0)
        median, quartile, top = (
            np.take_along_axis(pauses, at[:, None], axis=1)[:, 0] for at in (last // 2, 3 * last // 4, last)
        )
        rare = median + (quartile - median) * _QUARTILE * (_TAIL + math.log(math.log(2)))
        allowed = np.maximum(np.maximum(float(self.config.silence_ns), _RATIO * top), rare)
        return np.where(n >= _LEAST_PAUSES, allowed, np.inf)

    def median_ns(self, slot: int) -> float:
        """Of the remembered pauses, NaN if there is none."""
        pauses = self._pauses[slot]
        known = pauses[~np.isnan(pauses)]
        return float(np.median(known)) if len(known) else math.nan

    def faded(self, slot: int, from_ns: int) -> bool:
        """Whether it decided less and less before it fell silent: the pauses grew, or the last seconds had fewer
        decisions than usual.
        """
        n = int(self._at[slot])
        late = self._pauses[slot, np.arange(n - _LATE, n) % _PAUSES]
        if np.median(late) > 2 * self.median_ns(slot):
            return True
        at, slots = from_ns // SECOND, np.array([slot])
        before = self.series.recent("n", slots, at, _BEFORE_S + 1)[0][:_BEFORE_S]  # its last second is incomplete
        usual = self.series.baseline("n", slots, at, _BEFORE_S + 1)
        if usual.seen[0] < 0.5 * min(SECONDS, at - int(self.first_ns[slot]) // SECOND):
            return False  # it decides only now and then
        return bool(np.nansum(before) / _BEFORE_S < _FADED * usual.median[0])

    def replaced(self, slot: int) -> bool:
        """Whether another process of that program has used another limiter of that library since: a limiter named by
        its address gets another name at each start. A new limiter of the same process does not replace it.
        """
        return any(
            name[1:] == self.names[slot][1:]
            and self.who[other] != self.who[slot]
            and self.first_ns[other] > self.last_ns[slot]
            for other, name in self.names.items()
        )

    def describe(self, symptom: str, slot: int) -> Episode:
        limiter, comm, _ = self.names[slot]
        pid, tick = self.over[slot][2] if slot in self.over else self.who[slot]
        who = f"limiter {limiter} ({process(comm, pid if pid > 0 else None)})"
        episode = Episode(symptom, (limiter, comm), slot, who, f"{pid}/{tick}", metric="silent", unit="ns")
        episode.start_ns = int(self.last_ns[slot])
        episode.pid, episode.start_tick, episode.comm = pid if pid > 0 else None, tick, comm
        episode.keys = {"limiter_id": limiter, "comm": comm, "pid": None}
        return episode
