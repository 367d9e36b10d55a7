"""Peers that processes of this host ask: round trips to them, segments sent again, waits for them, second by second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.guard import Guard
from agent.correlate.local import is_loopback
from agent.correlate.rows import as_bytes, groups
from agent.correlate.thresholds import CorrelatorConfig
from agent.correlate.view import NO_PEER
from agent.correlate.watch import Watch
from agent.correlate.words import peer
from agent.tables import TABLES

_BLOCKED = TABLES["syscall_latency"].code("basis", "blocked")
_WAITING = TABLES["syscall_latency"].code("kind", "waiting")
_SERVER, _CLIENT = (TABLES["tcp_rtt"].code("role", name) for name in ("server", "client"))
_OK = TABLES["tcp_connect"].code("result", "ok")
_SYN = TABLES["tcp_retransmit"].code("kind", "syn")
#: What symptoms of peers read.
READS = {
    "tcp_rtt": ("netns", "role", "saddr", "sport", "peer", "samples", "rtt_min_us"),
    "tcp_connect": ("peer", "result", "duration_ns"),
    "tcp_retransmit": ("saddr", "sport", "peer", "kind", "count"),
    "syscall_latency": ("basis", "kind", "peer", "max_ns"),
}
_MOST = 64  # peers looked at in a second: those with the most round trips


class PeerWatch(Watch):
    """One subject is one ip:port that clients of this host talk to from one network namespace, unless it is served in the same: then no link is between.

    floor_us: the shortest smoothed RTT of the second, of the connections with most samples; connect_us: the median of its connects, without those whose SYN was sent again; again: segments
    sent again, the peer's own among them where it is on this host; wait_ns: the longest wait of a process for it. here: it is a process of this host.
    """

    metrics = ("floor_us", "connect_us", "again", "wait_ns", "here")

    def __init__(self, config: CorrelatorConfig, symptoms: Sequence[Symptom] = (), guard: Guard | None = None) -> None:
        super().__init__(config, symptoms, guard)
        self.names: dict[int, tuple[int, bytes]] = {}

    def fill(self, second: int, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        talks = rows.get("tcp_rtt")
        if talks is None:
            return np.empty(0, np.int64)
        mine = talks[(talks["role"] == _CLIENT) & (talks["peer"] != NO_PEER) & (talks["samples"] > 0)]
        if not len(mine):
            return np.empty(0, np.int64)
        served = talks[talks["role"] == _SERVER]
        mine = mine[~np.isin(_with_netns(mine, as_bytes(mine["peer"])), _with_netns(served, _served(served)))]
        if not len(mine):
            return np.empty(0, np.int64)
        first, group = groups([mine["netns"], mine["peer"]])
        samples = np.bincount(group, mine["samples"])
        floor = np.full(len(first), np.inf)
        most = np.zeros(len(first), np.int64)
        np.maximum.at(most, group, mine["samples"])
        busy = 2 * mine["samples"] >= most[group]  # a smoothed RTT of few samples lags behind
        np.minimum.at(floor, group[busy], mine["rtt_min_us"][busy])
        chosen = np.sort(np.argsort(-samples, kind="stable")[:_MOST])
        chosen = chosen[[not is_loopback(mine["peer"][first[i]].tobytes()) for i in chosen]]
        slots = np.array([self._slot(mine[first[i]], second) for i in chosen], np.int64)
        keys = as_bytes(mine["peer"][first[chosen]])
        values = {
            "floor_us": floor[chosen],
            "connect_us": self._connects(rows, keys),
            "again": self._again(rows.get("tcp_retransmit"), keys),
            "wait_ns": self._waits(rows.get("syscall_latency"), keys),
            "here": np.isin(keys, _served(served)).astype(np.float64),
        }
        fits = slots >= 0
        self.series.put(second, slots[fits], **{name: of[fits] for name, of in values.items()})
        return slots[fits]

    @staticmethod
    def _connects(rows: Mapping[str, np.ndarray], keys: np.ndarray) -> np.ndarray:
        done, again = rows.get("tcp_connect"), rows.get("tcp_retransmit")
        out = np.full(len(keys), np.nan)
        if done is None:
            return out
        done = done[done["result"] == _OK]
        of = _index(keys, as_bytes(done["peer"]))
        order = np.lexsort((done["duration_ns"], of))
        order = order[of[order] >= 0]
        first = np.flatnonzero(np.diff(of[order], prepend=-1))
        middle = (first + np.append(first[1:], len(order)) - 1) // 2
        out[of[order][first]] = done["duration_ns"][order][middle] / 1e3
        if again is not None:
            dirty = _index(keys, as_bytes(again["peer"][again["kind"] == _SYN]))
            out[dirty[dirty >= 0]] = np.nan
        return out

    @staticmethod
    def _again(again: np.ndarray | None, keys: np.ndarray) -> np.ndarray:
        out = np.zeros(len(keys))
        if again is None:
            return out
        count = np.maximum(again["count"], 1)
        for ends in (as_bytes(again["peer"]), _served(again)):
            of = _index(keys, ends)
            np.add.at(out, of[of >= 0], count[of >= 0])
        return out

    @staticmethod
    def _waits(waits: np.ndarray | None, keys: np.ndarray) -> np.ndarray:
        if waits is None:
            return np.full(len(keys), np.nan)
        waits = waits[(waits["basis"] == _BLOCKED) & (waits["kind"] == _WAITING)]
        out = np.zeros(len(keys))
        of = _index(keys, as_bytes(waits["peer"]))
        np.maximum.at(out, of[of >= 0], waits["max_ns"][of >= 0])
        return out

    def _slot(self, row: np.void, second: int) -> int:
        key = int(row["netns"]), row["peer"].tobytes()
        slot = self.series.slot(key, second)
        if slot >= 0:
            self.names[slot] = key
        return slot

    def describe(self, symptom: str, slot: int) -> Episode:
        netns, raw = self.names[slot]
        where = peer(raw)
        return Episode(symptom, (netns, raw), slot, where, where, 0, 0, "", "", 0.0, 0.0, 0.0, 0)


def _index(keys: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Which key each end is, -1 for none."""
    if not len(ends) or not len(keys):
        return np.full(len(ends), -1)
    order = np.argsort(keys, kind="stable")
    at = order[np.searchsorted(keys, ends, sorter=order).clip(max=len(keys) - 1)]
    return np.where(keys[at] == ends, at, -1)


def _with_netns(rows: np.ndarray, ends: np.ndarray) -> np.ndarray:
    both = np.empty(len(rows), [("netns", rows["netns"].dtype), ("end", ends.dtype)])
    both["netns"], both["end"] = rows["netns"], ends
    return as_bytes(both)


def _served(rows: np.ndarray) -> np.ndarray:
    """Each row's own end, as a peer is stored."""
    ends = np.empty(len(rows), [("address", "V16"), ("port", "<u2")])
    ends["address"], ends["port"] = rows["saddr"], rows["sport"].clip(0, 65535)
    return as_bytes(ends)
