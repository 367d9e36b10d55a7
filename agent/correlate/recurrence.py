"""What a healthy subject does again and again is usual, however rarely. A fault, however, says nothing about other
faults. Pure.

A symptom that its declaration marks (``Episode.recurs_by``) is not reported if it is a recurrence: within a day the
same subject had it ``_TIMES`` times, each at least half as bad, apart from the next, and of the same cause. If the
cause is known, they must also be spread over ``_SPREAD_S``. Causes that a healthy service does not have (``_FAULTS``)
are never a recurrence. So a few faults do not suppress reports, and a fault with another cause is always reported. Of a
fault that repeats all the time, hardly more than ``_TIMES`` are reported in a day (a test counts them).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from agent.correlate.episode import Episode, Verdict

_TIMES, _REMEMBER_S, _SPREAD_S, _LIKE, _APART_S = 12, 86_400, 1800, 0.5, 5
_KEPT, _KEYS, _RUNS = 2 * _TIMES, 1024, 8192
_SURE = 0.5  # score below which a cause counts as unknown
_SETTLED_S = 70  # after this time the cause of an episode is final
#: Causes that a healthy service does not have again and again, and those that mean that none is known.
_FAULTS = frozenset(
    ("process_stopped", "process_killed", "process_restarted", "broker_down", "failover", "resource_limit")
)
_NONE = frozenset(("unknown", "load"))


@dataclass
class _Run:
    """at, until: its first and last bad second. episode: kept while its cause may change."""

    at: int
    until: int
    value: float
    cause: str
    episode: Episode | None

    def update(self, second: int) -> None:
        e = self.episode
        if e is not None:
            self.until, self.value, self.cause = e.last_bad, max(self.value, e.value), e.blame
            self.episode = None if second - e.last_bad > _SETTLED_S else e


def reason(verdicts: Iterable[Verdict]) -> str:
    """The best verdict's cause; empty if none is known."""
    best = next(iter(verdicts), None)
    return best.cause if best is not None and best.score >= _SURE and best.cause not in _NONE else ""


def _worst(runs: list[_Run]) -> list[_Run]:
    """The ``_KEPT`` worst of each cause, in order."""
    if len(runs) <= _KEPT:
        return runs
    ranks: Counter[str] = Counter()
    kept = []
    for run in sorted(runs, key=lambda run: (-run.value, -run.at)):
        ranks[run.cause] += 1
        if ranks[run.cause] <= _KEPT:
            kept.append(run)
    return sorted(kept, key=lambda run: run.at)


class Recurrences:
    """Of all subjects. Beyond ``_KEYS`` subjects, or ``_RUNS`` in all, the one without a run for longest is forgotten.
    An episode is held only while its cause may change.
    """

    def __init__(self) -> None:
        self._runs: dict[tuple[object, ...], list[_Run]] = {}
        self._open: list[_Run] = []
        self._count = 0
        self._updated_second = -1

    def __len__(self) -> int:
        return len(self._runs)

    def has(self, episode: Episode, cause: str, second: int) -> bool:
        """Records an episode; returns whether it is usual there. cause: see ``reason``."""
        if not episode.recurs_by:
            return False
        episode.blame = cause or episode.blame
        key = (episode.symptom, episode.recurs_by, *episode.key)
        if second != self._updated_second:
            self._updated_second = second
            for run in self._open:
                run.update(second)
            self._open = [run for run in self._open if run.episode is not None]
        runs = self._runs.pop(key, [])
        for run in runs:
            run.update(second)
        self._count -= len(runs)
        runs = _worst([run for run in runs if run.until > second - _REMEMBER_S])
        self._runs[key] = runs
        now = next((run for run in runs if run.episode is episode), None)
        if now is None:
            at = episode.start_ns // 1_000_000_000
            now = _Run(at, episode.last_bad, episode.value, cause, episode)
            if runs and at - runs[-1].until <= _APART_S:
                now.at, now.value = runs[-1].at, max(now.value, runs[-1].value)
                runs.pop()
            runs.append(now)
            self._open = [*self._open[-_KEYS:], now]
        self._count += len(runs)
        while len(self._runs) > _KEYS or (self._count > _RUNS and len(self._runs) > 1):
            self._count -= len(self._runs.pop(next(iter(self._runs))))
        if cause in _FAULTS:
            return False
        alike = [r for r in runs if r is not now and r.cause == cause and r.value >= _LIKE * episode.value]
        return len(alike) >= _TIMES and (not cause or alike[-1].until - alike[0].at >= _SPREAD_S)
