"""Waits of Go programs that sleep: each is one row of limiter_decision, written when it ends, since only then it is
known whether its caller gave up.

The kernel sends a record when the decision is made (``asleep``) and one when the sleep ends (``woke``). If the second
does not arrive (its program ended, or the probes were removed), the row is ``delayed`` as of the decision, soon after
the sleep must have ended.

A caller that must wait may return its reservation instead. If it does so at once, that is a refusal: such a decision is
held for a moment to see whether it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from agent.batch import Batch, make
from agent.columns import NULL_I64
from agent.common.copies import only
from agent.contracts import Finishing, Pending
from agent.instruments.limiters.decisions import CANCELLED, Called, decided
from agent.limiters.reading import DELAYED, REFUSED
from agent.tables import TABLES

#: Decisions held at once, as many as the kernel's side keeps; beyond it the oldest become ``delayed`` early.
MOST = 16_384
#: The longest hold, however long the sleep.
LONGEST_NS = 600_000_000_000
#: Margin for a starved program, which wakes up late.
_SLACK_NS = 1_000_000_000
#: How long a reservation is held; within what time a return counts as at once; their values of ``asleep`` and ``woke``.
_GIVEN_BACK_NS, _AT_ONCE_NS, _RESERVED = 100_000_000, 10_000_000, 2
_REPORT_NS = 60_000_000_000


class Waits(Finishing, Pending):
    """Implements ``agent.contracts.Source``. early: rows that were written before their wait had ended."""

    name = "limiter_waits"

    def __init__(self, called: Called) -> None:
        self._called = called
        self._records: np.ndarray | None = None  # in order of arrival
        self._new: list[np.ndarray] = []
        self._due_ns = np.empty(0, np.int64)
        self.early = self._early_reported = 0
        self._reported_ns = -_REPORT_NS

    def feed(self, records: np.ndarray) -> None:
        """Takes records of ``struct limiter_decision``."""
        sleeping = only(records, (records["asleep"] | records["woke"]) != 0)
        if len(sleeping):
            self._new.append(sleeping)

    def pending(self, now_ns: int) -> bool:
        """Whether a wait began, or one should have ended."""
        return bool(self._new) or bool(len(self._due_ns) and self._due_ns.min() < now_ns)

    def drain(self, now_ns: int) -> Iterator[Batch]:
        if self._new:
            held = [] if self._records is None else [self._records]
            yield from self._pair(np.concatenate([*held, *self._new]))
            self._new = []
        over = self._due_ns < now_ns
        over[: max(0, len(over) - MOST)] = True
        if over.any():
            self.early += int(np.count_nonzero(self._due_ns[over] >= now_ns))
            yield from _batch(decided(self._keep(~over), self._called))
        if self.early > self._early_reported and now_ns - self._reported_ns >= _REPORT_NS:
            yield self._status(now_ns)

    def finish(self, now_ns: int, wait: Callable[[float], None]) -> Iterator[Batch]:
        """Rows of the sleeping callers, at the end of a run."""
        del wait
        yield from self.drain(now_ns)
        if len(self._due_ns):
            yield from _batch(decided(self._keep(np.zeros(len(self._due_ns), np.bool_)), self._called))

    def _pair(self, records: np.ndarray) -> Iterator[Batch]:
        """Rows of callers that woke up, or must have, since their goroutine makes a new decision."""
        pid, goroutine = records["proc"]["pid"], records["goroutine"]
        order = np.lexsort((goroutine, pid))  # stable: each goroutine's records stay in order of arrival
        next_of = np.append(order[1:], -1)
        again = np.append((pid[order][1:] == pid[order][:-1]) & (goroutine[order][1:] == goroutine[order][:-1]), False)
        slept = records["asleep"][order] != 0
        ended, still = order[slept & again], np.sort(order[slept & ~again])
        after = records[next_of[slept & again]]
        self._records = records[still]
        self._due_ns = _due_ns(decided(self._records, self._called), self._records["asleep"])
        rows = decided(records[ended], self._called)
        held = records["asleep"][ended] == _RESERVED
        woke = ~held & (after["woke"] == 1)
        rows["duration_ns"] += np.where(woke, after["t_ns"].astype(np.int64) - rows["t_ns"], 0)
        rows["t_ns"] = np.where(woke, after["t_ns"].astype(np.int64), rows["t_ns"])
        rows["result"] = np.where(woke & (after["ok"] == 0), CANCELLED, rows["result"])
        _give_back(rows, held & (after["woke"] == _RESERVED), records[ended], after)
        yield from _batch(rows)

    def _keep(self, kept: np.ndarray) -> np.ndarray:
        """Holds these records; returns the others."""
        assert self._records is not None
        gone: np.ndarray = self._records[~kept]
        self._records, self._due_ns = self._records[kept], self._due_ns[kept]
        return gone

    def _status(self, now_ns: int) -> Batch:
        more, self._early_reported, self._reported_ns = self.early - self._early_reported, self.early, now_ns
        reason = (
            f"{more} waits are reported as delayed although they have not ended: more than {MOST} sleep at once, so"
            " callers that give up are not seen"
        )
        return make(
            "probe_status",
            1,
            t_ns=now_ns,
            probe=b"limiter waits",
            state=TABLES["probe_status"].code("state", "degraded"),
            reason=reason.encode(),
        )

    def close(self) -> None:
        pass


def _give_back(rows: np.ndarray, given: np.ndarray, records: np.ndarray, after: np.ndarray) -> None:
    """Marks reservations that their goroutine returned. At once: it would have had to wait, and did not."""
    given = (
        given & (after["limiter"] == records["limiter"]) & (after["n"] == records["n"]) & (rows["result"] == DELAYED)
    )
    at_once = given & (after["t_ns"] - records["t_ns"] < _AT_ONCE_NS)
    rows["result"][given] = CANCELLED
    rows["result"][at_once] = REFUSED
    rows["wait_ns"][at_once] = NULL_I64
    rows["remaining"][at_once] += rows["cost"][at_once]


def _batch(rows: np.ndarray) -> Iterable[Batch]:
    return (Batch("limiter_decision", rows),) if len(rows) else ()


def _due_ns(rows: np.ndarray, asleep: np.ndarray) -> np.ndarray:
    """The latest end of each sleep, or the latest return of a reservation, CLOCK_BOOTTIME."""
    wait = np.minimum(np.where(rows["wait_ns"] == NULL_I64, 0, rows["wait_ns"]), LONGEST_NS) + _SLACK_NS
    return np.asarray(rows["t_ns"] + np.where(asleep == _RESERVED, _GIVEN_BACK_NS, wait))
