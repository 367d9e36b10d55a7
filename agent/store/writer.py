"""Runs the store on its own thread, so that a file system that does not answer (frozen, or its disk gone) delays
nothing else.

Findings get their sentence in UTC here, for SQL and files. New rows wait in a bounded backlog. Rows that it drops are
shown by ``status`` at once, and by ``loss`` rows once the file system answers.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from agent.batch import Batch
from agent.common import remedy
from agent.common.copies import copied
from agent.common.fairness import UpperBound
from agent.common.printable import printable
from agent.common.sentence import ToWall, unknown
from agent.log import ERROR, log_message
from agent.store.backlog import Backlog, Entry
from agent.store.hot import HotStore
from agent.store.sentences import in_utc

#: Bytes that may wait for a slow file system. One drain of a full ring is 12 MB, so a second one during a slow write is
#: not lost.
MOST_BYTES = 32 << 20
#: After this long a file system counts as not answering.
STALLED_S = 3.0
#: How long the agent waits for it at its end.
CLOSE_S = 5.0
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "store",
        "rows that wait while the file system does not answer",
        MOST_BYTES >> 20,
        "the oldest are dropped",
        "`status` (`store`: stalled), `loss` (`store`)",
        "MiB",
    ),
    UpperBound(
        "store",
        "wait at exit for a file system that does not answer",
        CLOSE_S,
        "the agent exits with status 4",
        "stderr",
        "s",
    ),
)
#: Maximal age of the directory's sizes in ``state``.
_CHECK_S = 0.5


class Writer:
    """Passes all work on a HotStore to its own thread, in order. A Sink (agent/contracts.py); only ``close`` waits for
    that thread.

    wall: dates findings' sentences; called on that thread.
    """

    name = "store"

    def __init__(self, store: HotStore, wall: ToWall = unknown) -> None:
        self._store, self._wall = store, wall
        self._ready = threading.Condition()
        self._backlog = Backlog()
        self._others: dict[Callable[[], None], None] = {}
        self._in_hand = 0
        self._begun_s: float | None = None
        self._closing = False
        self._fault = ""
        self._check()
        #: ``close`` timed out on the file system.
        self.stuck = False
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    def limit(self, **changed: float) -> None:
        """Changes the limits ``max_bytes``, ``max_age_s``."""
        self._store.limit(**changed)

    def offer(self, batch: Batch) -> None:
        self.append([batch])

    def append(self, batches: Iterable[Batch], tick_ns: int | None = None) -> None:
        """As HotStore.append, but later. Never waits, never raises."""
        new: list[Entry] = [b for b in batches if len(b.rows)]
        with self._ready:
            if (
                self._begun_s is not None or self._backlog.entries
            ):  # it is busy: waiting rows must not keep larger arrays alive
                new = [Batch(b.table, copied(b.rows)) for b in new if isinstance(b, Batch)]
                self._backlog.trim(MOST_BYTES)
            self._backlog.hold(new if tick_ns is None else [*new, tick_ns])
            self._ready.notify()

    def later(self, work: Callable[[], None]) -> None:
        """Runs ``work`` on the store's thread; the same work that already waits is not added again."""
        with self._ready:
            self._others[work] = None
            self._ready.notify()

    def stalled_s(self) -> float:
        """How long the file system has not answered, 0 if it does. A shorter time counts once rows had to be dropped
        for it.
        """
        begun_s = self._begun_s
        waits_s = 0.0 if begun_s is None else time.monotonic() - begun_s
        return waits_s if waits_s >= STALLED_S or self._backlog.lost else 0.0

    def problem(self) -> str:
        """What is wrong and the remedy, in a text that does not change while it lasts; empty if all is well."""
        if self.stalled_s():
            return f"stalled: the file system does not answer; try: {remedy.UNANSWERED}"
        state = self.state()
        return f"{state['reason']}; try: {state['remedy']}" if state["reason"] else ""

    def losses(self) -> dict[str, int]:
        """Rows dropped since the start, by table."""
        with self._ready:
            return dict(self._backlog.dropped + Counter(self._store.losses()))

    def state(self) -> dict[str, Any]:
        """As HotStore.state, at most half a second old while the file system answers."""
        with self._ready:
            waiting = self._backlog.rows + self._in_hand
        found = {
            **self._seen,
            "waiting_rows": self._seen["waiting_rows"] + waiting,
            "dropped_rows": sum(self.losses().values()),
        }
        if stalled_s := self.stalled_s():
            reason = f"stalled for {stalled_s:.0f} s: the file system does not answer"
            found.update(state="degraded", reason=reason, remedy=remedy.UNANSWERED)
        elif self._fault and not found["reason"]:
            found.update(state="degraded", reason=self._fault, remedy="report this as a bug")
        return found

    def close(self) -> None:
        """Ends the store. If the file system does not answer within CLOSE_S, waiting rows are given up, and the process
        cannot end before it answers.
        """
        with self._ready:
            self._closing = True
            self._ready.notify()
        self._thread.join(CLOSE_S)
        self.stuck = self._thread.is_alive()
        if not self.stuck:
            if self._fault:
                log_message(f"tickscope: store: {self._fault}: rows may be missing at its end", ERROR)
            return
        with self._ready:
            self._backlog.trim(0)
            lost = self._backlog.dropped.total() + self._in_hand
        log_message(
            f"tickscope: store: the file system has not answered for {self.stalled_s():.0f} s: {lost} rows are not"
            " stored\n  why: a thread is in a system call that nothing can interrupt; this process ends when the file"
            f" system answers\n  try: {remedy.UNANSWERED}",
            ERROR,
        )

    def _run(self) -> None:
        while not self._turn():
            pass

    def _turn(self) -> bool:
        """Does all waiting work; True after the last time."""
        with self._ready:
            self._begun_s, self._in_hand = None, 0
            self._ready.wait_for(lambda: self._backlog.entries or self._others or self._closing)
            self._begun_s, self._in_hand = time.monotonic(), self._backlog.rows
            entries, others, closing = self._backlog.take(), list(self._others), self._closing
            self._others.clear()
            self._store.missed(self._backlog.lost)
            self._backlog = Backlog()
        for batches, tick_ns in _appends(entries):
            for i in range(len(batches)):
                self._attempt(partial(self._date, batches, i))
            self._attempt(partial(self._store.append, batches, tick_ns))
            with self._ready:
                self._begun_s, self._in_hand = time.monotonic(), self._in_hand - sum(len(b.rows) for b in batches)
        for work in [*others, *([self._store.close] if closing else [])]:
            self._attempt(work)
        if not closing and (self._store.failing != self._failing or time.monotonic() - self._seen_s >= _CHECK_S):
            self._attempt(self._check)
        return closing

    def _date(self, batches: list[Batch], i: int) -> None:
        batches[i] = in_utc(batches[i], self._wall)

    def _check(self) -> None:
        self._seen, self._seen_s, self._failing = self._store.state(), time.monotonic(), self._store.failing

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever fails, later rows must be stored
            self._fault = printable(f"{type(error).__name__}: {error}")[:200]


def _appends(entries: Iterable[Entry]) -> Iterator[tuple[list[Batch], int | None]]:
    """The batches up to each watermark, with that watermark."""
    batches: list[Batch] = []
    for entry in entries:
        if isinstance(entry, Batch):
            batches.append(entry)
        else:
            yield batches, entry
            batches = []
    if batches:
        yield batches, None
