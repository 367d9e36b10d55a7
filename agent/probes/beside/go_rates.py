"""How much a limiter decided that is watched a part of the time only: rows of ``limiter_rate``.

What was let through is read from a token bucket itself, where the library has one (bucket.py). Else, and for refusals,
windows stand for the time between them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import nan
from typing import NamedTuple

import numpy as np

from agent.batch import Batch
from agent.limiters.catalogue import seen
from agent.limiters.reading import ALLOWED, DELAYED
from agent.probes.beside import rate_rows
from agent.probes.beside.bucket import LOOK, agreed
from agent.probes.beside.bucket_looks import of_records, of_words
from agent.probes.beside.go_decisions import Called, unnamed
from agent.probes.beside.pace import pace
from agent.probes.beside.rate_rows import Limiter, RateSpan, WindowDecisions

#: Limiters of a process that are told each by itself, those with most decisions; of the others together one row.
MOST = 64
#: Limiters of a program's that are told by name, of all of its processes.
ALL = 256
#: Looks at buckets that are kept of the time before a program was found to decide too often; and of one limiter, among
#: which those that agree are looked for.
TAIL, _LOOKS = 256, 32
#: Windows without a decision after which a limiter is told no more.
_GONE = 20
#: After which what buckets say is told without a window.
LONG_NS = 1_000_000_000


class BucketPlace(NamedTuple):
    """Where a limiter's bucket is, and in which process, by its start, and program, by how often it had become
    another.
    """

    pid: int
    address: int
    old: bool
    proc_start_ns: int
    exec_id: int


class Rates:
    """Of one binary and library. ``covered_ns``: up to then all is told. ``held``: in the last window the probes set
    somebody's pace. old: its limiters are laid out as in 2019.
    """

    def __init__(self, old: bool = False) -> None:
        self.covered_ns = 0
        self.held = False
        self._begun = True
        self._old = old
        self._limiters: dict[tuple[int, int], Limiter] = {}
        self._tail = np.empty(0, [("pid", "<u4"), ("limiter", "<u8"), ("through", "?"), ("look", LOOK)])
        self._later = self._tail
        self._known: dict[tuple[int, int], np.ndarray] = {}

    @property
    def pids(self) -> set[int]:
        return {pid for pid, _ in self._limiters}

    def wanted(self) -> Iterator[BucketPlace]:
        """Each limiter at whose bucket is to be looked."""
        for (pid, address), one in self._limiters.items():
            if one.record is not None:
                start_ns, exec_id = int(one.record["proc"]["proc_start_ns"][0]), int(one.record["exec_id"][0])
                yield BucketPlace(pid, address, self._old, start_ns, exec_id)

    def before(self, records: np.ndarray) -> None:
        """Takes note of buckets while each decision is seen."""
        mine = records[-TAIL:] if self._begun else records
        for at in np.unique(mine["limiter"], return_index=True)[1][-MOST:].tolist():
            key = int(mine["proc"]["pid"][at]), int(mine["limiter"][at])
            self._known.pop(key, None)
            self._known[key] = mine[at : at + 1].copy()
        self._known = dict(list(self._known.items())[-MOST:])
        tail = np.zeros(len(mine), self._tail.dtype)
        tail["pid"], tail["limiter"] = mine["proc"]["pid"], mine["limiter"]
        tail["look"], tail["through"] = of_records(mine), _let_through(mine)
        late = tail["look"]["t_ns"] > self.covered_ns if not self._begun else np.zeros(len(tail), np.bool_)
        self._tail = np.concatenate((self._tail, tail[~late]))[-TAIL:]
        self._later = np.concatenate((self._later, tail[late]))[-TAIL:]

    def begin(self, now_ns: int) -> None:
        """From now on windows only."""
        self.covered_ns = now_ns
        self._begun = False
        pairs = {*self._limiters, *map(tuple, self._tail[["pid", "limiter"]].tolist())}
        self._limiters = {pair: Limiter(self._known.get(pair), faster=nan) for pair in list(pairs)[-MOST:]}

    def _begin(self) -> None:
        """With the first window all of the time before is known."""
        self._begun = True
        for (pid, limiter), one in self._limiters.items():
            mine = self._tail[(self._tail["pid"] == pid) & (self._tail["limiter"] == limiter)][-_LOOKS:]
            if not len(mine):
                continue
            at = agreed(mine["look"])
            known = mine["look"][[at]]
            one.bucket.last = known[~np.isnan(known["limit"])]
            one.bucket.told = int(np.count_nonzero(mine["through"][at + 1 :]))
            let, ns = int(np.count_nonzero(mine["through"])), int(np.ptp(mine["look"]["t_ns"]))
            if ns and not one.each:
                one.each.append((let, len(mine) - let, ns))
        self._tail, self._later = self._later, self._tail[:0]

    def looked(self, looks: np.ndarray, library: int) -> None:
        """Takes records of ``struct limiter_look``."""
        for key in sorted(
            set(zip(looks["pid"].tolist(), looks["limiter"].tolist(), strict=True)) & self._limiters.keys()
        ):
            mine = looks[(looks["pid"] == key[0]) & (looks["limiter"] == key[1])]
            self._limiters[key].bucket.looked(of_words(mine, library, self._old))

    def window(
        self,
        records: np.ndarray,
        since_ns: int,
        until_ns: int,
        hit_ns: float,
        called: Called = unnamed,
        last: bool = False,
    ) -> list[Batch]:
        """The rows of what is not told yet up to the end of a window, by the records from it. hit_ns: what a decision
        cost its thread. called: the limiters' ids.
        last: from then on all of the time is watched again.
        """
        if not self._begun:
            self._begin()
        records = np.sort(records[(records["t_ns"] >= since_ns) & (records["t_ns"] < until_ns)], order="t_ns")
        interval, watched = until_ns - self.covered_ns, max(until_ns - since_ns, 1)
        self.covered_ns = until_ns
        seen_now = WindowDecisions(records, _let_through(records))
        rows: list[np.ndarray] = []
        self.held = False
        for pid in sorted(self.pids | set(np.unique(records["proc"]["pid"]).tolist())):
            mine = seen_now.of(records["proc"]["pid"] == pid)
            faster = pace(mine.records, watched, hit_ns)
            self.held |= bool(np.isnan(faster))
            rows += self._process(pid, mine, RateSpan(until_ns, interval, watched, faster, called, last))
        return _batch(rows)

    def between(self, until_ns: int, called: Called) -> list[Batch]:
        """The rows of what is not told yet, where no window has come for long; none where nothing is known of a
        bucket.
        """
        ones = list(self._limiters.values())
        if (
            not self._begun
            or until_ns - self.covered_ns < LONG_NS
            or not all(one.each and one.bucket.sees for one in ones)
        ):
            return []
        span = RateSpan(until_ns, until_ns - self.covered_ns, 0, nan, called)
        self.covered_ns = until_ns
        return _batch([rate_rows.unwatched(one, span) for one in ones])

    def ended(self, until_ns: int, pids: set[int], called: Called) -> list[Batch]:
        """The rows of processes that are not watched in windows any more: up to then as in the last of them."""
        span = RateSpan(until_ns, until_ns - self.covered_ns, 0, nan, called)
        gone = [self._limiters.pop(key) for key in list(self._limiters) if key[0] in pids]
        return _batch([rate_rows.last_of(one, span) for one in gone if one.record is not None and one.each])

    def _process(self, pid: int, now: WindowDecisions, span: RateSpan) -> list[np.ndarray]:
        addresses, counts = np.unique(now.records["limiter"], return_counts=True)
        most = addresses[np.argsort(-counts, kind="stable")[:MOST]].tolist()
        known = [address for owner, address in self._limiters if owner == pid]
        room = len(known) + max(0, ALL - len(self._limiters))
        told = list(dict.fromkeys([*known, *most]))[: min(2 * MOST, room)]
        out = []
        for address in told:
            mine = now.of(now.records["limiter"] == address)
            one = self._limiters.setdefault((pid, address), Limiter())
            if len(mine.records):
                one.decided(mine, span)
            if one.record is not None:
                out.append(rate_rows.row_of(one, mine, span))
            one.quiet = 0 if one.record is None or len(mine.records) or out[-1]["allowed"][0] else one.quiet + 1
            if one.quiet > _GONE:
                del self._limiters[pid, address]
        rest = now.of(~np.isin(now.records["limiter"], told))
        if len(rest.records):
            out.append(rate_rows.seen_of(Limiter(rest.records[-1:]), rest, span))
            out[-1]["limiter_id"] = b"others"
        return out


def _batch(rows: list[np.ndarray]) -> list[Batch]:
    return [Batch("limiter_rate", np.concatenate(rows))] if rows else []


def _let_through(records: np.ndarray) -> np.ndarray:
    if not len(records):
        return np.zeros(0, np.bool_)
    result = list(seen().values())[int(records["library"][0])].read(records)["result"]
    return np.isin(result, (ALLOWED, DELAYED))
