"""The base of all symptoms' watches: evaluates seconds against baselines, and opens, extends and ends episodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np

from agent.correlate.episode import Episode
from agent.correlate.guard import Guard
from agent.correlate.rows import OfSecond
from agent.correlate.series import Series
from agent.correlate.thresholds import SECOND, CorrelatorConfig

_LASTED_S = 60


@dataclass(frozen=True)
class Second:
    """at: its number, CLOCK_BOOTTIME s; slots: the subjects with values in it; rows: its rows by table."""

    at: int
    slots: np.ndarray
    rows: OfSecond


@dataclass(frozen=True)
class Rise:
    """A lasting rise of a metric: bad seconds exceed the baseline by ``least``, by 6 spreads and by ``ratio``, and its
    90th percentile. seconds: its minimum length (0: ``CorrelatorConfig.persist_s``). instead: an active episode of this
    metric becomes one of the rise.
    """

    symptom: str
    metric: str
    unit: str
    least: float
    ratio: float
    seconds: int = 0
    instead: str = ""


class JudgedSymptom(Protocol):
    """What a watch uses of a symptom (``Symptom`` in agent/correlate/catalogue.py)."""

    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def adopted(self) -> bool: ...
    @property
    def judge(self) -> Callable[[Any, Second], None] | None: ...


class Watch(ABC):
    """Watches one kind of subject. Subclasses fill ``series`` and describe episodes; their symptoms judge the
    seconds.
    """

    metrics: tuple[str, ...] = ()

    def __init__(self, config: CorrelatorConfig) -> None:
        self.config = config
        self._symptoms: Sequence[JudgedSymptom] = ()
        self._guard = Guard()
        self.series = Series(self.metrics, config.subjects)
        self.active: dict[tuple[str, int], Episode] = {}
        self._active_slots = np.empty(0, np.int64)
        self._opened: list[Episode] = []

    def judged_by(self, symptoms: Sequence[JudgedSymptom], guard: Guard) -> Self:
        """The same with the symptoms that judge its subjects. guard: contains their errors."""
        self._symptoms, self._guard = symptoms, guard
        return self

    @property
    def dropped(self) -> int:
        """Subjects for which there was no room, each counted in each second."""
        return self.series.dropped

    def step(self, second: int, rows: OfSecond) -> list[Episode]:
        """Takes one whole second's rows; returns the episodes that it opened. ``active`` holds all active ones."""
        self.series.begin(second)
        slots = self._guard.attempt(type(self).__name__, self.fill, second, rows, otherwise=np.empty(0, np.int64))
        self._opened = []
        if len(slots):
            now = Second(second, slots, rows)
            for symptom in self._symptoms:
                if symptom.judge is not None:
                    self._guard.attempt(f"symptom {symptom.name}", symptom.judge, self, now, otherwise=None)
            self._guard.attempt(f"facts of {type(self).__name__}", self._settle, second, otherwise=None)
        self._end(second)
        return self._opened

    @abstractmethod
    def fill(self, second: int, rows: OfSecond) -> np.ndarray:
        """Puts the second's values into ``series``; returns the slots with values."""

    def put(self, second: int, slots: np.ndarray, **values: np.ndarray) -> np.ndarray:
        """Puts values of one second into ``series``, but for subjects without room (slot -1); returns the other slots.
        ``slots`` and every value have shape (n,).
        """
        fits = slots >= 0
        self.series.put(second, slots[fits], **{metric: of[fits] for metric, of in values.items()})
        return np.asarray(slots[fits])

    def _settle(self, second: int) -> None:
        for episode in self.active.values():
            if episode.last_bad == second:  # values after the end explain nothing
                self.settle(episode, second, max(1, min(_LASTED_S, second - episode.start_ns // SECOND + 1)))

    def settle(self, episode: Episode, second: int, lasted: int) -> None:  # noqa: B027 - most need it not
        """Called after all symptoms: sets the values for the rules of causes in the ``facts`` of an episode that goes
        on. lasted: its seconds, at most ``_LASTED_S``.
        """

    @abstractmethod
    def describe(self, symptom: str, slot: int) -> Episode:
        """An episode of this subject with its names; the numbers are set later."""

    def place(self, symptom: str, slot: int, metric: str) -> tuple[str, int]:
        """The key in ``active`` of an episode of that metric: one per symptom and subject."""
        return symptom, slot

    def rises(self, rise: Rise, of: Second, allowed: Callable[[np.ndarray], np.ndarray]) -> None:
        """Opens an episode if the rise has lasted, and extends an active one. ``allowed``: for some indices of
        ``of.slots``, whether an episode may open.
        """
        second, n = of.at, rise.seconds or self.config.persist_s
        recent = self.series.recent(rise.metric, of.slots, second, n)
        # Cheap test first: no threshold is below ``least``, and a baseline takes far longer.
        considered = np.asarray((recent > rise.least).all(axis=1))
        if len(self._active_slots):
            considered |= np.isin(of.slots, self._active_slots)
        some = np.flatnonzero(considered)
        if not len(some):
            return
        slots, recent = of.slots[some], recent[some]
        usual = self.series.baseline(rise.metric, slots, second, n)
        bar = np.maximum(
            usual.median + np.maximum(rise.least, 6 * usual.spread), np.maximum(usual.median * rise.ratio, usual.high)
        )
        lasting = np.all(recent > bar[:, None], axis=1) & (usual.seen >= self.config.warm_s) & allowed(some)
        for i in np.flatnonzero(lasting | np.isin(slots, self._active_slots)):
            slot = int(slots[i])
            episode = self.active.get(self.place(rise.symptom, slot, rise.metric))
            if lasting[i] and episode is not None:
                episode.recurs_by = ""  # lasting rises are no recurrences
            if episode is not None and episode.metric == rise.metric:
                if recent[i, -1] > episode.bar:
                    self.extend(episode, second, float(recent[i, -1]))
            elif lasting[i] and episode is not None and episode.metric == rise.instead:
                episode.metric, episode.value = rise.metric, float(recent[i].max())
                episode.base, episode.bar = float(usual.median[i]), float(bar[i])
                self.extend(episode, second, episode.value)
            elif lasting[i] and episode is None:
                episode = self.describe(rise.symptom, slot)
                episode.metric, episode.unit = rise.metric, rise.unit
                episode.base, episode.bar = float(usual.median[i]), float(bar[i])
                episode.start_ns = (second - n + 1) * SECOND
                self.open(episode, second, float(recent[i].max()), n)

    def extended(self, symptom: str, slot: int, second: int, value: float, end_ns: int | None = None) -> Episode | None:
        """The active episode of this subject, extended by this second; None if there is none."""
        episode = self.active.get((symptom, slot))
        if episode is not None:
            self.extend(episode, second, value, end_ns)
        return episode

    def begin(self, symptom: str, slot: int, second: int, value: float, bad_seconds: int, **its: Any) -> Episode:
        """A new episode of this subject with these fields."""
        episode = replace(self.describe(symptom, slot), **its)
        self.open(episode, second, value, bad_seconds)
        return episode

    def begin_slow(
        self, symptom: JudgedSymptom, slot: int, second: int, first: int, worst_ns: float, metric: str, base: float
    ) -> Episode:
        """A new episode of something that took long, recorded at its end, since the second ``first``."""
        start_ns, bad = int((first + 1) * SECOND - worst_ns), second - first + 1
        its = {"metric": metric, "unit": symptom.unit, "start_ns": start_ns, "base": base}
        return self.begin(symptom.name, slot, second, worst_ns, bad, **its)

    def open(self, episode: Episode, second: int, value: float, bad_seconds: int) -> None:
        """Begins an episode. ``step`` returns it even if its symptom fails afterwards, since it would not be opened
        again.
        """
        episode.value = value
        episode.end_ns = max(episode.end_ns, (second + 1) * SECOND) if not episode.end_ns else episode.end_ns
        episode.last_bad = second
        self.series.unusual(episode.slot, range(second - bad_seconds + 1, second + 1))
        self.series.hold(episode.slot, second)
        self.active[self.place(episode.symptom, episode.slot, episode.metric)] = episode
        self._opened.append(episode)
        self._active_slots = np.array(sorted({slot for _, slot in self.active}), np.int64)

    def extend(self, episode: Episode, second: int, value: float, end_ns: int | None = None) -> None:
        episode.value = max(episode.value, value)
        episode.end_ns = (second + 1) * SECOND if end_ns is None else max(episode.end_ns, end_ns)
        episode.last_bad = second
        self.series.unusual(episode.slot, range(second, second + 1))

    def _end(self, second: int) -> None:
        if not self.active:
            return
        quiet, adopted = self.config.quiet_s, {symptom.name for symptom in self._symptoms if symptom.adopted}
        latest = second - self.config.adopt_s
        ended = [
            key
            for key, episode in self.active.items()
            if second - episode.last_bad >= quiet
            or (episode.symptom in adopted and episode.start_ns // SECOND <= latest)
        ]
        for key in ended:
            del self.active[key]
        if ended:
            self._active_slots = np.array(sorted({slot for _, slot in self.active}), np.int64)
            self.series.release({slot for _, slot in self.active})
