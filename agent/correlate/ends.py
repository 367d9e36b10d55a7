"""Watches with an ip:port as subject that processes of this host talk to, from one network namespace."""

from __future__ import annotations

import numpy as np

from agent.correlate.episode import Episode
from agent.correlate.rows import OfSecond
from agent.correlate.series import SECONDS
from agent.correlate.thresholds import CorrelatorConfig
from agent.correlate.watch import Watch
from agent.correlate.words import peer

MOST = 64  # subjects evaluated in a second: those with most events


class EndWatch(Watch):
    """names: (network namespace, 18 bytes) by slot."""

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self.names: dict[int, tuple[int, bytes]] = {}
        self._since: int | None = None

    def usually(self, metric: str, slot: int, second: int, skip: int, since_s: int) -> float | None:
        """The 90th percentile of the seconds before the last ``skip``, where a second without a value counts as 0. None
        while the subject is hardly known. since_s: when it began, or this watch did.
        """
        known_s = min(SECONDS - 1 - skip, second - skip - max(self._since or 0, since_s))
        if known_s < self.config.warm_s:
            return None
        values = np.nan_to_num(self.series.history(metric, np.array([slot]), second, skip)[0][-known_s:])
        return float(np.sort(values)[int(0.9 * (len(values) - 1))])

    def step(self, second: int, rows: OfSecond) -> list[Episode]:
        self._since = second if self._since is None else self._since
        return super().step(second, rows)

    def slots(self, netns: np.ndarray, ends: np.ndarray, second: int) -> np.ndarray:
        """The slot of each, -1 if there is no room."""
        keys = list(zip(netns.tolist(), ends.tolist(), strict=True))
        found = [self.series.slot(key, second) for key in keys]
        self.names.update((slot, key) for slot, key in zip(found, keys, strict=True) if slot >= 0)
        return np.array(found, np.int64)

    def describe(self, symptom: str, slot: int) -> Episode:
        netns, raw = self.names[slot]
        where = peer(raw)
        return Episode(symptom, (netns, raw), slot, where, where, keys={"peer": raw})
