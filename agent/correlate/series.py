"""Values of each subject per second, and the robust baseline for comparison."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np

SECONDS = 128
_OWED_S, _HALF = 30, 0.5
_SIGMA = 1.4826  # a normal distribution's standard deviation in units of its median absolute deviation


class Baseline(NamedTuple):
    """The usual values, one per subject, NaN without data.

    median; spread: 1.4826 times the median absolute deviation; high: the 90th percentile; top: the largest; seen:
    seconds.
    """

    median: np.ndarray
    spread: np.ndarray
    high: np.ndarray
    top: np.ndarray
    seen: np.ndarray


def quantile(values: np.ndarray, q: float) -> np.ndarray:
    """The q-quantile (nearest rank, rounded down) of each row of an (n, m) array, without NaN."""
    return _ranked(np.sort(values, axis=1), _seen(values), q)


def _seen(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.count_nonzero(~np.isnan(values), axis=1))


def _ranked(ordered: np.ndarray, seen: np.ndarray, q: float) -> np.ndarray:
    """ordered: each row sorted, NaN last; seen: how many of it are not NaN."""
    at = np.maximum(((seen - 1) * q).astype(np.int64), 0)
    return np.asarray(ordered[np.arange(len(ordered)), at])


class Series:
    """Metrics of subjects by second, the last ``SECONDS`` of them; a subject is any hashable key.

    Seconds that were part of a symptom are not part of the baseline. While a symptom lasts, the baseline is held as it
    was at its beginning: otherwise nothing of it would be left after ``SECONDS``. At most ``limit`` subjects: one
    unseen for ``SECONDS`` is replaced by a new one, unless ``stays`` is true for its row. A new one without room is not
    watched, and counted in ``dropped``.
    """

    def __init__(self, metrics: tuple[str, ...], limit: int, stays: Callable[[int], bool] = lambda _: False) -> None:
        self._limit, self._stays = limit, stays
        self._slot: dict[tuple[object, ...], int] = {}
        self._seen: list[int] = []
        self._of = {metric: i for i, metric in enumerate(metrics)}
        self._values = np.empty((len(metrics), 0, SECONDS), np.float32)
        self._usual = np.empty((0, SECONDS), np.bool_)
        #: Held rows: since which second, values by metric, and which seconds are usual.
        self._held: dict[int, tuple[int, np.ndarray, np.ndarray]] = {}
        self._second: int | None = None
        self._full = -1  # the last second without room
        self.dropped = 0

    def __contains__(self, key: tuple[object, ...]) -> bool:
        """Whether this subject has a row."""
        return key in self._slot

    @property
    def full(self) -> bool:
        return len(self._slot) >= self._limit

    def begin(self, second: int) -> None:
        """Opens a second: the values one turn of the ring ago are deleted."""
        first = second if self._second is None else max(self._second + 1, second - SECONDS + 1)
        self._second = second
        if len(self._usual):
            for stale in range(first, second + 1):
                self._values[:, :, stale % SECONDS] = np.nan
                self._usual[:, stale % SECONDS] = True

    def slot(self, key: tuple[object, ...], second: int) -> int:
        """The subject's row, or -1 if there is no room for it."""
        slot = self._slot.get(key, -1)
        if slot < 0:
            slot = self._place(second)
            if slot < 0:
                self.dropped += 1
                return -1
            self._slot[key] = slot
            self._values[:, slot] = np.nan
            self._usual[slot] = True
            self._held.pop(slot, None)
        self._seen[slot] = second
        return slot

    def pass_on(self, key: tuple[object, ...], heir: tuple[object, ...]) -> None:
        """The row of a subject that is no more becomes that of another one, with its values."""
        self._slot[heir] = self._slot.pop(key)

    def _place(self, second: int) -> int:
        if len(self._slot) < len(self._seen):
            return next(iter(set(range(len(self._seen))) - set(self._slot.values())))
        if len(self._seen) < self._limit:
            grown = min(self._limit, max(8, 2 * len(self._seen)))
            more = grown - len(self._seen)
            self._seen += [0] * more
            room = np.full((len(self._of), more, SECONDS), np.nan, np.float32)
            self._values = np.concatenate([self._values, room], axis=1)
            self._usual = np.concatenate([self._usual, np.ones((more, SECONDS), np.bool_)])
            return len(self._slot)
        if self._full == second:
            return -1
        old = (
            (self._seen[slot], slot, key) for key, slot in self._slot.items() if self._seen[slot] <= second - SECONDS
        )
        for _, slot, key in sorted(old, key=lambda one: one[:2]):
            if not self._stays(slot):
                del self._slot[key]
                return slot
        self._full = second
        return -1

    def put(self, second: int, slots: np.ndarray, **values: np.ndarray) -> None:
        """Values of one second; ``slots`` and every value have shape (n,)."""
        with np.errstate(over="ignore"):  # a limiter may report any number
            for metric, value in values.items():
                self._values[self._of[metric], slots, second % SECONDS] = value

    def carry(self, second: int, slots: np.ndarray, reach: int) -> np.ndarray:
        """Subjects other than ``slots`` that were seen within ``reach`` seconds keep their last values for this second;
        returns all of them.
        """
        there = set(slots.tolist())
        held = [s for s in self._slot.values() if self._seen[s] >= second - reach and s not in there]
        if held:
            self._values[:, held, second % SECONDS] = self._values[:, held, (second - 1) % SECONDS]
        return np.array(sorted([*there, *held]), np.int64)

    def unusual(self, slot: int, seconds: range) -> None:
        """Keeps these seconds out of the subject's baseline."""
        self._usual[slot, np.array(seconds, np.int64) % SECONDS] = False

    def hold(self, slot: int, second: int) -> None:
        """From now on the subject's baseline stays as it is in this second; see ``release``."""
        if slot not in self._held:
            self._held[slot] = second, self._values[:, slot].copy(), self._usual[slot].copy()

    def release(self, but: Collection[int]) -> None:
        """Ends what ``hold`` began, but of these subjects."""
        for slot in self._held.keys() - but:
            del self._held[slot]

    def recent(self, metric: str, slots: np.ndarray, second: int, n: int) -> np.ndarray:
        """Values of the last n seconds, oldest first; shape (len(slots), n)."""
        begin = (second - n + 1) % SECONDS
        values = self._values[self._of[metric]]
        if begin + n <= SECONDS:
            return np.asarray(values[slots, begin : begin + n], np.float64)
        return np.asarray(values[slots[:, None], np.arange(begin, begin + n) % SECONDS], np.float64)

    def last(self, metric: str, slots: np.ndarray, second: int) -> np.ndarray:
        """Values of this second; shape (len(slots),)."""
        return np.asarray(self._values[self._of[metric], slots, second % SECONDS], np.float64)

    def deficit(self, metric: str, slot: int, second: int, lasted: int, usual: float) -> tuple[float, float]:
        """For a rate: (missing, excess). missing: the deficit in seconds with less than half of the usual rate, in the
        last ``lasted`` seconds and the ``_OWED_S`` before; excess: how much more than usual came in the last ``lasted``
        seconds.
        """
        n = min(SECONDS - 1, lasted + _OWED_S)
        values = self.recent(metric, np.array([slot]), second, n)[0]
        there = np.flatnonzero(~np.isnan(values))
        values = np.nan_to_num(values[there[0] :]) if len(there) else values[:0]
        missing = np.where(values < _HALF * usual, usual - values, 0.0).sum()
        return float(missing), float((values[-lasted:] - usual).clip(0).sum())

    def baseline(self, metric: str, slots: np.ndarray, second: int, skip: int) -> Baseline:
        """The usual values before the last ``skip`` seconds."""
        values = self.history(metric, slots, second, skip)
        ordered, seen = np.sort(values, axis=1), _seen(values)
        median, high, top = (_ranked(ordered, seen, q) for q in (0.5, 0.9, 1.0))
        with np.errstate(invalid="ignore"):  # no limit is an infinite one
            apart = np.abs(values - median[:, None])
        return Baseline(median, _SIGMA * quantile(apart, 0.5), high, top, seen)

    def seen(self, metric: str, slots: np.ndarray, second: int, skip: int) -> np.ndarray:
        """``baseline(...).seen`` alone."""
        return _seen(self.history(metric, slots, second, skip))

    def history(self, metric: str, slots: np.ndarray, second: int, skip: int) -> np.ndarray:
        """The values that ``baseline`` uses: those before the last ``skip`` seconds, or before a symptom that lasts;
        NaN in seconds of a symptom; shape (len(slots), n).
        """
        columns = np.arange(second - SECONDS + 1, second - skip + 1) % SECONDS
        values = self._values[self._of[metric]][slots[:, None], columns].astype(np.float64)
        values[~self._usual[slots[:, None], columns]] = np.nan
        for i in np.flatnonzero(np.isin(slots, list(self._held))) if self._held else ():
            since, held, usual = self._held[int(slots[i])]
            columns = np.arange(since - values.shape[1] + 1, since + 1) % SECONDS
            values[i] = np.where(usual[columns], held[self._of[metric]][columns], np.nan)
        return np.asarray(values)
