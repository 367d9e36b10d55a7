"""Whether the probes set a program's pace: how much faster it may decide while it is not watched. Pure."""

from __future__ import annotations

import os
from math import nan

import numpy as np

#: Share of its time in probes above which a thread or goroutine is taken to do nothing else, and of decisions that may
#: be such before nothing is said any more.
_ALL, _FEW = 0.5, 0.02
#: What a thread does within so little says nothing of its pace.
BRIEF_NS = 2_000_000
#: Of a batch of records; and of which something is kept. Share of its time that a thread runs or waits for a processor,
#: above which it never rests.
_THREADS, _MOST_THREADS, _RESTLESS, _BUSY = 4, 256, 0.8, 0.6
_CPUS = os.cpu_count() or 1


def pace(records: np.ndarray, watched_ns: int, cost_ns: float) -> float:
    """At least 1: it may decide so many times as often outside of a window as in it. A NaN where that is not known,
    because the probes took most of its time.

    If its callers do not wait for the answers (an open loop), it is 1. If each comes again as soon as it has one, then
    the time that the probes took is what it would have had for
    more: by goroutine, by thread, and of the processors together, of which the strictest holds. records: in the order
    in which they came. cost_ns: of each to its thread.
    """
    n = len(records)
    if not n:
        return 1.0
    shares = [np.full(n, n * cost_ns / watched_ns / _CPUS)]
    _, group, counts = np.unique(records["goroutine"], return_inverse=True, return_counts=True)
    shares.append(counts[group] * cost_ns / watched_ns)
    _, group, counts = np.unique(records["proc"]["tid"], return_inverse=True, return_counts=True)
    threads = np.array(
        [_spent(records[group == at]) if count > _FEW * n else (0, 0, 0, 0) for at, count in enumerate(counts)]
    )
    shares.append(threads[group, 0] * cost_ns / np.maximum(watched_ns - threads[group, 3], 1))
    if any(np.count_nonzero(share > _ALL) > _FEW * n for share in shares) or _restless(
        threads, int(records["t_ns"].max() - records["t_ns"].min()), cost_ns
    ):
        return nan
    return float(max(np.mean(1 / (1 - np.minimum(share, _ALL))) for share in shares))


def _spent(mine: np.ndarray) -> tuple[int, ...]:
    """Of a thread between its first and its last record: how many, in how long, how long it ran, and was ready to and
    did not.
    """
    return len(mine), *(max(0, int(mine[-1][name]) - int(mine[0][name])) for name in ("t_ns", "ran_ns", "held_ns"))


def _restless(threads: np.ndarray, within_ns: int, cost_ns: float) -> bool:
    """Whether, from the first record to the last, some thread always ran or waited for a processor, and most of what
    ran was probes: then they set the pace, however seldom it could run. How long a thread ran is known to a tick.
    """
    n, _, ran, held = threads.sum(0)
    return bool(ran + held > _BUSY * within_ns and n * cost_ns > _ALL * ran)


class Busy:
    """What the threads that decide most do beside it, by their own counts of how long they ran, and were ready to and
    did not.
    """

    def __init__(self) -> None:
        self._last: dict[int, np.void] = {}
        self._sums: dict[int, np.ndarray] = {}
        self._new: set[int] = set()

    def feed(self, records: np.ndarray) -> None:
        """Takes records, in the order in which they came."""
        tids, group, counts = np.unique(records["proc"]["tid"], return_inverse=True, return_counts=True)
        for at in np.argsort(-counts)[:_THREADS].tolist():
            tid, mine = int(tids[at]), records[group == at]
            if tid not in self._last:
                self._new.add(tid)
            first = self._last.get(tid, mine[0])
            done = [
                counts[at],
                *(max(0, int(mine[-1][name]) - int(first[name])) for name in ("t_ns", "ran_ns", "held_ns")),
            ]
            self._sums[tid] = self._sums.get(tid, np.zeros(4)) + done
            self._last[tid] = mine[-1:].copy()[0]

    def again(self) -> None:
        """What comes next does not follow on what came."""
        self._last.clear()
        self._sums.clear()
        self._new.clear()

    def load(self, cost_ns: float, new_ns: int) -> float:
        """Since the last look, the share of its time that a thread spent in probes, of the one that did most; 0 where
        nothing is known.

        new_ns: at least so much time of its own had a thread that was not known before, of which nothing is known but a
        burst. Time in which it waited for a processor was not the program's, nor is it ours to take a share of. Of a
        thread that never rests more may be lost than a hit takes where nobody else is: twice as much is taken.
        """
        sums = [(*of, new_ns if tid in self._new else 1) for tid, of in self._sums.items()]
        self._sums = {}
        self._new.clear()
        if len(self._last) > _MOST_THREADS:
            self._last.clear()
        most = max((n for n, *_ in sums), default=0)
        return max(
            (
                n * cost_ns / max(of - held, of / 50, least) * (1 + (ran + held > _RESTLESS * max(of, least)))
                for n, of, ran, held, least in sums
                if n >= most / 4 and of > 0
            ),
            default=0.0,
        )
