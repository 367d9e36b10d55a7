"""Peers that processes of this host connect to: how many connects were through, how many failed, and how many connections were reset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.guard import Guard
from agent.correlate.rows import groups
from agent.correlate.thresholds import CorrelatorConfig
from agent.correlate.view import NO_PEER
from agent.correlate.watch import Watch
from agent.correlate.words import peer
from agent.tables import TABLES

_OK, _FAILED = (TABLES["tcp_connect"].code("result", name) for name in ("ok", "failed"))
_RECEIVED, _SERVER = TABLES["tcp_reset"].code("direction", "received"), TABLES["tcp_reset"].code("role", "server")
#: What a symptom of connects reads.
READS = {"tcp_connect": ("netns", "peer", "result", "errno"), "tcp_reset": ("netns", "peer", "role", "direction")}
_MOST = 64  # peers looked at in a second: those with the most connects


class ConnectWatch(Watch):
    """One subject is one ip:port that clients connect to from one network namespace.

    ok, failed: connects; broken: connections that were reset after they had been through: who refuses a connect does so by a reset as well.
    """

    metrics = ("ok", "failed", "broken")

    def __init__(self, config: CorrelatorConfig, symptoms: Sequence[Symptom] = (), guard: Guard | None = None) -> None:
        super().__init__(config, symptoms, guard)
        self.names: dict[int, tuple[int, bytes]] = {}

    def fill(self, second: int, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        parts = [self._ends(rows.get("tcp_connect")), self._ends(_resets(rows.get("tcp_reset")))]
        ends = np.concatenate(parts)
        if not len(ends):
            return np.empty(0, np.int64)
        first, group = groups([ends["netns"], ends["peer"]])
        done, result = parts[0], rows["tcp_connect"]["result"] if len(parts[0]) else np.empty(0)
        of = group[: len(done)]
        ok, failed = (np.bincount(of, result == code, len(first)) for code in (_OK, _FAILED))
        resets = np.bincount(group[len(done) :], minlength=len(first))
        chosen = np.sort(np.argsort(-(ok + failed + resets), kind="stable")[:_MOST])
        chosen = chosen[ends["peer"][first[chosen]] != NO_PEER]
        slots = np.array([self._slot(ends[first[i]], second) for i in chosen], np.int64)
        fits, at = slots >= 0, chosen
        self.series.put(
            second,
            slots[fits],
            ok=ok[at][fits],
            failed=failed[at][fits],
            broken=np.maximum(resets - failed, 0)[at][fits].astype(np.float64),
        )
        return slots[fits]

    @staticmethod
    def _ends(rows: np.ndarray | None) -> np.ndarray:
        kind = np.dtype([("netns", np.int64), ("peer", "V18")])
        out = np.empty(0 if rows is None else len(rows), kind)
        if rows is not None:
            out["netns"], out["peer"] = rows["netns"], rows["peer"]
        return out

    def _slot(self, end: np.void, second: int) -> int:
        key = int(end["netns"]), end["peer"].tobytes()
        slot = self.series.slot(key, second)
        if slot >= 0:
            self.names[slot] = key
        return slot

    def describe(self, symptom: str, slot: int) -> Episode:
        netns, raw = self.names[slot]
        where = peer(raw)
        return Episode(symptom, (netns, raw), slot, where, where, 0, 0, "", "", 0.0, 0.0, 0.0, 0)


def _resets(rows: np.ndarray | None) -> np.ndarray | None:
    """Those that reached a client."""
    return None if rows is None else rows[(rows["direction"] == _RECEIVED) & (rows["role"] != _SERVER)]
