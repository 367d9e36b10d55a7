"""Watches whose subject is an ip:port that processes of this host talk to, from one network namespace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.guard import Guard
from agent.correlate.thresholds import CorrelatorConfig
from agent.correlate.watch import Watch
from agent.correlate.words import peer

MOST = 64  #: of them are looked at in a second: those with most to tell


class EndWatch(Watch):
    """names: (network namespace, 18 bytes) by slot."""

    def __init__(self, config: CorrelatorConfig, symptoms: Sequence[Symptom] = (), guard: Guard | None = None) -> None:
        super().__init__(config, symptoms, guard)
        self.names: dict[int, tuple[int, bytes]] = {}

    def slots(self, netns: np.ndarray, ends: np.ndarray, second: int) -> np.ndarray:
        """The slot of each, -1 where there is no room."""
        keys = list(zip(netns.tolist(), ends.tolist(), strict=True))
        found = [self.series.slot(key, second) for key in keys]
        self.names.update((slot, key) for slot, key in zip(found, keys, strict=True) if slot >= 0)
        return np.array(found, np.int64)

    def describe(self, symptom: str, slot: int) -> Episode:
        netns, raw = self.names[slot]
        where = peer(raw)
        return Episode(symptom, (netns, raw), slot, where, where, 0, 0, "", "", 0.0, 0.0, 0.0, 0)
