"""The agent's one thread: drains sources, advances the correlator, feeds the sinks. It never blocks on any of them."""

from __future__ import annotations

import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from agent.batch import Batch, Sink, Source, make
from agent.containers import Containers
from agent.correlate.correlator import Correlator
from agent.errors import say
from agent.store.hot import HotStore
from agent.tables import TABLES

BUSY_S, QUIET_S = 0.010, 0.100
#: Rings and processors deliver out of order by less than this; the correlator works behind it.
WATERMARK_NS = 300_000_000
_ADVANCE_NS = 100_000_000
_SECOND_NS = 1_000_000_000
#: A source that fails this often in a row is left out until the next start.
_FAILURES = 5
#: Tables whose rows arrive by the clock, not because something happened: they do not keep the loop at its busy pace.
_PERIODIC = {"tcp_rtt", "syscall_latency", "socket_queue", "queue_lag", "clock_offset", "clock_daemon", "probe_status", "notice_status"}


def boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Closing(Protocol):
    """Something beside the sinks that ends with the loop."""

    def close(self) -> None: ...


class Loop:
    """Sources in, sinks out. ``totals`` counts rows by table, ``lost`` records by (stage, source) since the start.

    store: takes every row first. filter: sees each drained batch first and says what goes on. each_second: called with CLOCK_BOOTTIME ns, for what is shown or watched. Failing sources are
    reported on stderr and in ``failures``, and left out after some failures in a row.
    """

    def __init__(self, sources: list[Source], store: HotStore, correlator: Correlator, sinks: list[Sink]) -> None:
        self.sources, self.store, self.correlator, self.sinks = sources, store, correlator, sinks
        self.totals: Counter[str] = Counter()
        self.lost: Counter[tuple[str, str]] = Counter()
        self.failures: dict[str, str] = {}
        self.closing: list[Closing] = []
        self.each_second: list[Callable[[int], None]] = []
        self.stopping = False
        self.filter: Callable[[Batch, int], Iterable[Batch]] = lambda batch, _: (batch,)
        self._in_a_row: Counter[str] = Counter()
        self._containers = Containers()
        self._waiting: list[Batch] = []
        self._advanced_ns = self._second_ns = 0
        self._sink_losses: dict[tuple[str, str], int] = {}
        self.selector = selectors.DefaultSelector()
        for source in sources:
            for fd in source.fds():
                self.selector.register(fd, selectors.EVENT_READ)

    def on_readable(self, sock: socket.socket, callback: Callable[[], None]) -> None:
        """Calls back from the loop when the socket is readable."""
        self.selector.register(sock, selectors.EVENT_READ, callback)

    def run(self, until_ns: int = 0) -> None:
        """Until ``stopping``, or CLOCK_BOOTTIME reaches until_ns."""
        busy = True
        while not self.stopping and (not until_ns or boot_ns() < until_ns):
            for key, _ in self.selector.select(BUSY_S if busy else QUIET_S):
                if callable(key.data):
                    key.data()
            busy = self.step(boot_ns())

    def step(self, now_ns: int) -> bool:
        """One turn; True when something happened."""
        happened = False
        for source in list(self.sources):
            for drained in self._drain(source, now_ns):
                for batch in self.filter(drained, now_ns):
                    happened |= batch.table not in _PERIODIC
                    self.take(batch)
        if now_ns - self._advanced_ns >= _ADVANCE_NS:
            self._advanced_ns = now_ns
            self.advance(now_ns - WATERMARK_NS)
        if now_ns - self._second_ns >= _SECOND_NS:
            self._second_ns = now_ns
            self._count_losses(now_ns)
            for callback in self.each_second:
                callback(now_ns)
        return happened

    def _drain(self, source: Source, now_ns: int) -> Iterable[Batch]:
        try:
            batches = list(source.drain(now_ns))
            self._in_a_row[source.name] = 0
            return batches
        except Exception as error:  # noqa: BLE001 - one source's fault must not stop the others
            self._in_a_row[source.name] += 1
            self.failures[source.name] = f"{type(error).__name__}: {error}"
            gone = self._in_a_row[source.name] >= _FAILURES
            say(f"tickscope: {source.name}: {self.failures[source.name]}" + ("; left out from now on" if gone else ""))
            if gone:
                self.sources.remove(source)
                for fd in source.fds():
                    self.selector.unregister(fd)
            return ()

    def take(self, batch: Batch) -> None:
        """One batch into everything that follows."""
        if not len(batch.rows):
            return
        self._containers.fill(batch)
        self.totals[batch.table] += len(batch.rows)
        if batch.table == "loss":
            self._note_losses(batch.rows)
        self._waiting.append(batch)
        self.correlator.feed(batch)
        for sink in self.sinks:
            sink.offer(batch)

    def advance(self, watermark_ns: int) -> None:
        """Moves the correlator on, and writes what came together with the watermark, so that a replay sees the same."""
        before = self._waiting
        self._waiting = []
        findings = self.correlator.advance(watermark_ns)
        for batch in findings:
            self.totals[batch.table] += len(batch.rows)
            for sink in self.sinks:
                sink.offer(batch)
        self.store.append(before, tick_ns=watermark_ns)
        if findings:
            self.store.append(findings)

    def _note_losses(self, rows: np.ndarray) -> None:
        stages = TABLES["loss"].by_name["stage"].names
        for row in rows:
            self.lost[stages[row["stage"]], row["source"].decode()] += max(int(row["count"]), 0)

    def _count_losses(self, now_ns: int) -> None:
        """Turns what sinks say they dropped since the last look into ``loss`` rows."""
        stage = TABLES["loss"].code("stage", "export")
        for sink in self.sinks:
            for reason, count in sink.losses().items():
                key = (sink.name, reason)
                more = count - self._sink_losses.get(key, 0)
                if more > 0:
                    source = f"{sink.name} {reason}".encode()
                    self.take(make("loss", 1, t_ns=now_ns, stage=stage, source=source, count=more,
                                   from_ns=now_ns - _SECOND_NS, to_ns=now_ns))  # fmt: skip
                self._sink_losses[key] = count

    def finish(self) -> None:
        """Takes what is still on its way, closes sources, then sinks, then the store."""
        now = boot_ns()
        for source in self.sources:
            last = getattr(source, "finish", None)
            for drained in last(now, time.sleep) if last else self._drain(source, now):
                for batch in self.filter(drained, now):
                    self.take(batch)
        self.advance(boot_ns())
        for source in self.sources:
            source.close()
        for one in [*self.sinks, *self.closing]:
            one.close()
        self._count_losses(boot_ns())  # what they could not deliver any more
        self.store.append(self._waiting)
        self.store.close()
