"""Which program connects where how often, and whether it waits after a failed try: second by second.

A try has failed if the connect did, if the server closed the connection without sending anything, or if the program
gave up waiting. Quick retries are counted by twentieths of a second, so that many simultaneous connects (a pool that is
reopened, one thread each) do not count as many retries.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from agent.common.copies import pick
from agent.correlate.ends import MOST, EndWatch
from agent.correlate.episode import Episode
from agent.correlate.join import within
from agent.correlate.rows import OfSecond, groups, known
from agent.correlate.thresholds import SECOND, CorrelatorConfig
from agent.correlate.view import NO_PEER
from agent.correlate.words import peer, process, text
from agent.tables import TABLES

_OK = TABLES["tcp_connect"].code("result", "ok")
_CLIENT = TABLES["tcp_close"].code("role", "client")
#: Columns that a symptom of retries reads.
READS = {
    "tcp_connect": ("netns", "peer", "result", "duration_ns"),
    "tcp_close": ("netns", "peer", "role", "bytes_in", "srtt_us", "waited_ns"),
}
QUICK_NS = 20_000_000
GAVE_UP_NS = 50_000_000  # a program that closes a connection sooner may have sent something without an answer
_PART_NS = SECOND // 20
_ROWS = 4096  # of a second that are evaluated
_KEYS = np.dtype([("comm", "S16"), ("netns", np.int64), ("peer", "V18"), ("pid", np.int64), ("start", np.int64)])


class RetryingProcess(NamedTuple):
    """The process with most of a second's tries."""

    pid: int
    tick: int
    comm: str


class RetryWatch(EndWatch):
    """One subject is a program, by its command name, and an ip:port that it connects to from one network namespace.
    tries: begun in the second; failed: of the second; quick: the number of the 20 parts of the second in which a
    process retried within ``QUICK_NS`` of a failure. who: by slot.
    """

    metrics = ("tries", "failed", "quick")

    def __init__(self, config: CorrelatorConfig) -> None:
        super().__init__(config)
        self._tries: tuple[np.ndarray, np.ndarray, dict[int, int]] | None = (
            None  # of the last second; each one's program; programs by slot
        )
        self._programs: dict[int, tuple[str, int, bytes]] = {}

    def fill(self, second: int, rows: OfSecond) -> np.ndarray:
        connects = rows["tcp_connect"]
        tries = pick(connects, connects["peer"] != NO_PEER)[-_ROWS:]
        if not len(tries):
            return np.empty(0, np.int64)
        bad = pick(tries, tries["result"] != _OK)
        ended = _fruitless(rows["tcp_close"])[-_ROWS:]
        keys = np.concatenate([_keys(part) for part in (tries, bad, ended)])
        failed_ns = np.concatenate([bad["t_ns"], ended["t_ns"] - _round_trip_ns(ended)])
        began = np.where(known(tries["duration_ns"]), tries["t_ns"] - tries["duration_ns"], tries["t_ns"])
        first, program = groups([keys["comm"], keys["netns"], keys["peer"]])
        parts = np.empty(0, np.int64)
        if len(failed_ns):
            _, one = groups([keys[name] for name in keys.dtype.names or ()])
            hit = np.unique(within(one[len(tries) :], failed_ns, one[: len(tries)], began - QUICK_NS, began)[0])
            its = set(zip(program[hit].tolist(), (began[hit] // _PART_NS).tolist(), strict=True))
            parts = np.array([number for number, _ in its], np.int64)
        n, quick = (np.bincount(of, minlength=len(first)) for of in (program[: len(tries)], parts))
        failed = np.bincount(program[len(tries) :], minlength=len(first))
        chosen = np.sort(np.argsort(-n, kind="stable")[:MOST])
        named = (keys[name][first[chosen]].tolist() for name in ("comm", "netns", "peer"))
        slots = np.array([self._slot(key, second) for key in zip(*named, strict=True)], np.int64)
        fits = slots >= 0
        at = chosen[fits]
        self._tries = tries, program[: len(tries)], dict(zip(slots[fits].tolist(), at.tolist(), strict=True))
        self.series.put(second, slots[fits], tries=n[at], failed=failed[at], quick=np.minimum(quick[at], 20))
        return slots[fits]

    def _slot(self, key: tuple[bytes, int, bytes], second: int) -> int:
        name = text(key[0]), *key[1:]
        slot = self.series.slot(name, second)
        if slot >= 0:
            self._programs[slot] = name
        return slot

    def who(self, slot: int) -> RetryingProcess | None:
        """The process with most of the last second's tries; None if only failures are known."""
        if self._tries is None:
            return None
        tries, program, programs = self._tries
        return _who(pick(tries, program == programs.get(slot, -1)))

    def describe(self, symptom: str, slot: int) -> Episode:
        (comm, netns, raw), who = self._programs[slot], self.who(slot)
        assert who is not None
        subject = f"{process(comm, who.pid)}, which connects to {peer(raw)}"
        episode = Episode(symptom, (netns, raw, comm), slot, subject, f"{comm} to {peer(raw)} in {netns}")
        episode.keys = {"comm": comm, "peer": raw, "pid": None}
        episode.pid, episode.start_tick, episode.comm = who.pid, who.tick, comm
        return episode


def _fruitless(closes: np.ndarray) -> np.ndarray:
    """Connections of clients that the server ended without sending anything, or that their program gave up on."""
    waited = known(closes["waited_ns"])
    nothing = ~waited & (closes["bytes_in"] == 0)
    which = nothing | (waited & (closes["waited_ns"] >= GAVE_UP_NS))
    return pick(closes, which & (closes["role"] == _CLIENT) & (closes["peer"] != NO_PEER))


def _round_trip_ns(closes: np.ndarray) -> np.ndarray:
    """The end of a connection that the server closes is recorded a round trip after its program knows of it."""
    return np.where(known(closes["waited_ns"]), 0, closes["srtt_us"].clip(0, 1_000_000) * 1000)


def _keys(rows: np.ndarray) -> np.ndarray:
    out = np.empty(len(rows), _KEYS)
    for name in ("comm", "netns", "peer", "pid"):
        out[name] = rows[name]
    out["start"] = rows["proc_start_ns"]
    return out


def _who(tries: np.ndarray) -> RetryingProcess | None:
    if not len(tries):
        return None
    first, group = groups([tries["pid"], tries["proc_start_ns"]])
    row = tries[first[np.argsort(-np.bincount(group), kind="stable")[0]]]
    return RetryingProcess(int(row["pid"]), int(row["proc_start_ns"]) // 10_000_000, text(row["comm"]))
