"""Requests that programs gave up on: connections closed before anything came in answer, and aborted connects."""

from __future__ import annotations

import numpy as np

from agent.common.alike import packed
from agent.common.copies import pick
from agent.correlate.ends import MOST, EndWatch
from agent.correlate.episode import Episode
from agent.correlate.rows import LastRows, OfSecond, groups, known
from agent.correlate.thresholds import SECOND, CorrelatorConfig
from agent.correlate.view import NO_PEER, to_peer
from agent.correlate.words import peer, process, text
from agent.tables import TABLES

_CLIENT = TABLES["tcp_close"].code("role", "client")
_ABORTED = TABLES["tcp_connect"].code("result", "aborted")
#: Columns read, by table.
READS = {"tcp_close": ("netns", "peer", "role", "waited_ns"), "tcp_connect": ("netns", "peer", "result", "duration_ns")}
LEAST_NS = 100_000_000  # shorter waits are measured too coarsely, in ticks, to be called equal
LAST_S = 10
_ROWS = 2048
GIVEN = np.dtype(
    [
        ("t_ns", np.int64),
        ("duration_ns", np.int64),
        ("pid", np.int64),
        ("tick", np.int64),
        ("comm", "S16"),
        ("netns", np.int64),
        ("peer", "V18"),
        ("connecting", np.bool_),
    ]
)


def given_up(closes: np.ndarray | None, connects: np.ndarray | None) -> np.ndarray:
    """The abandoned requests in these tables, in order of time, with how long they waited; dtype ``GIVEN``, connecting:
    there was no connection yet.
    """
    parts = []
    for rows, code, column, age in (
        (closes, _CLIENT, "role", "waited_ns"),
        (connects, _ABORTED, "result", "duration_ns"),
    ):
        if rows is None:
            continue
        rows = pick(
            rows,
            (rows[column] == code)
            & known(rows[age])
            & (rows[age] >= LEAST_NS)
            & (rows["peer"] != NO_PEER)
            & (rows["pid"] > 0),
        )
        if not len(rows):
            continue
        out = np.empty(len(rows), GIVEN)
        for name in ("t_ns", "pid", "comm", "netns", "peer"):
            out[name] = rows[name]
        out["duration_ns"], out["tick"] = rows[age], rows["proc_start_ns"] // 10_000_000
        out["connecting"] = column == "result"
        parts.append(out)
    if not parts:
        return np.empty(0, GIVEN)
    found = np.concatenate(parts)
    return np.asarray(found[np.argsort(found["t_ns"], kind="stable")])


class AbandonedWatch(EndWatch):
    """One subject is one ip:port that programs of this host call from one network namespace. given: requests given up
    in the second.
    """

    metrics = ("given",)

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self._last = LastRows(GIVEN, _ROWS, LAST_S * SECOND)
        self.who: dict[int, np.void] = {}

    def fill(self, second: int, rows: OfSecond) -> np.ndarray:
        given = given_up(rows["tcp_close"], rows["tcp_connect"])
        if not len(given):
            return np.empty(0, np.int64)
        self._last.add(given)
        first, group = groups([given["netns"], given["peer"]])
        n = np.bincount(group)
        chosen = np.sort(np.argsort(-n, kind="stable")[:MOST])
        slots = self.slots(given["netns"][first[chosen]], given["peer"][first[chosen]], second)
        return self.put(second, slots, given=n[chosen])

    def lately(self, slot: int, second: int) -> np.ndarray:
        """This subject's abandoned requests of the last seconds."""
        netns, raw = self.names[slot]
        rows = to_peer(self._last.between((second - LAST_S + 1) * SECOND, (second + 1) * SECOND), raw)
        return np.asarray(rows[rows["netns"] == netns])

    def describe(self, symptom: str, slot: int) -> Episode:
        (netns, raw), row = self.names[slot], self.who[slot]
        pid, comm, where = int(row["pid"]), text(row["comm"]), peer(raw)
        subject, tick = f"requests of {process(comm, pid)} to {where}", int(row["tick"])
        return Episode(
            symptom, (netns, raw), slot, subject, where, keys={"peer": raw}, pid=pid, start_tick=tick, comm=comm
        )


def typical_request(given: np.ndarray) -> np.void:
    """A row of the process with most of them; the first in time among equals."""
    keys = packed([given["pid"], given["tick"]]).tolist()
    counts = {key: keys.count(key) for key in dict.fromkeys(keys)}
    most: np.void = given[keys.index(max(counts, key=lambda key: counts[key]))]
    return most
