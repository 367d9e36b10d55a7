"""The agent's one thread: drains sources, advances the correlator, feeds the sinks. It never blocks on any of them."""

from __future__ import annotations

import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import numpy as np

from agent.batch import Batch, Sink, Source, make
from agent.columns import NULL_I64
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
#: How often the ``loss`` of a source that was left out is told again.
_LEFT_OUT_NS = 10_000_000_000
#: Tables whose rows arrive by the clock, not because something happened: they do not keep the loop at its busy pace.
_PERIODIC = {"tcp_rtt", "syscall_latency", "socket_queue", "queue_lag", "clock_offset", "clock_daemon", "probe_status", "notice_status"}


def boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Closing(Protocol):
    """Something that ends with the loop."""

    def close(self) -> None: ...


def _everything(batch: Batch, now_ns: int) -> Iterable[Batch]:
    return (batch,)


def _unknown_loss(source: str, from_ns: int, to_ns: int) -> Batch:
    """A ``loss`` row of what a source's failure may have cost, in CLOCK_BOOTTIME ns: nobody knows how much."""
    return make("loss", 1, t_ns=to_ns, stage=TABLES["loss"].code("stage", "intake"), source=source.encode(), from_ns=from_ns, to_ns=to_ns)


class Loop:
    """Sources in, sinks out. ``totals`` counts rows by table, ``lost`` records by (stage, source) since the start; ``lost_unknown`` names those of
    which nobody knows how many.

    store: takes every row first. filter: sees each drained batch first and says what goes on. each_second: called with CLOCK_BOOTTIME ns, for what is shown or watched. Failing sources are
    reported on stderr and in ``failures``, and left out after some failures in a row; what they may have lost is a ``loss`` row without a count.
    A batch at which the filter fails goes on as it is; a filter that fails again and again is left out, too.
    """

    def __init__(self, sources: list[Source], store: HotStore, correlator: Correlator, sinks: list[Sink]) -> None:
        self.sources, self.store, self.correlator, self.sinks = sources, store, correlator, sinks
        self.totals: Counter[str] = Counter()
        self.lost: Counter[tuple[str, str]] = Counter()
        self.lost_unknown: set[tuple[str, str]] = set()
        self.failures: dict[str, str] = {}
        self.closing: list[Closing] = []
        self.each_second: list[Callable[[int], None]] = []
        self.stopping = False
        self.filter: Callable[[Batch, int], Iterable[Batch]] = _everything
        self._in_a_row: Counter[str] = Counter()
        self._drained_ns = dict.fromkeys((source.name for source in sources), boot_ns())
        self._left_out_ns: dict[str, int] = {}
        self._containers = Containers()
        self._waiting: list[Batch] = []
        self._advanced_ns = self._second_ns = 0
        self._sink_losses: dict[tuple[str, str], int] = {}
        self.selector = selectors.DefaultSelector()
        for source in sources:
            for fd in source.fds():
                self.selector.register(fd, selectors.EVENT_READ, source.name)

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
            for drained in self._drain(source, source.drain, now_ns):
                for batch in self._filtered(drained, now_ns):
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

    def _drain(self, source: Source, read: Callable[[int], Iterable[Batch]], now_ns: int) -> list[Batch]:
        """What ``read`` yields. Where it fails: what it yielded before, since that is taken out of the kernel, and a ``loss`` row."""
        batches: list[Batch] = []
        try:
            batches.extend(read(now_ns))
            self._in_a_row[source.name] = 0
        except Exception as error:  # noqa: BLE001 - one source's fault must not stop the others
            batches.append(_unknown_loss(source.name, self._drained_ns[source.name], now_ns))
            if self._failed(source.name, error):
                self._left_out_ns[source.name] = now_ns
                self.sources.remove(source)
                for key in [k for k in self.selector.get_map().values() if k.data == source.name]:
                    self.selector.unregister(key.fileobj)
        self._drained_ns[source.name] = now_ns
        return batches

    def _filtered(self, batch: Batch, now_ns: int) -> Iterable[Batch]:
        name = f"filter of {batch.table}"
        try:
            passed = list(self.filter(batch, now_ns))
            self._in_a_row[name] = 0
            return passed
        except Exception as error:  # noqa: BLE001 - rows that are too many are better than none
            if self._failed(name, error):
                self.filter = _everything
            return (batch,)

    def _failed(self, name: str, error: Exception) -> bool:
        """Reports a failure; True where it was one too many in a row."""
        self._in_a_row[name] += 1
        self.failures[name] = f"{type(error).__name__}: {error}"
        gone = self._in_a_row[name] == _FAILURES
        say(f"tickscope: {name}: {self.failures[name]}" + ("; left out from now on" if gone else ""))
        return gone

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
        findings = self.correlator.advance(watermark_ns)
        before, self._waiting = self._waiting, []
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
            key = stages[row["stage"]], row["source"].decode()
            if row["count"] == NULL_I64:
                self.lost_unknown.add(key)
            else:
                self.lost[key] += max(int(row["count"]), 0)

    def _count_losses(self, now_ns: int, since_ns: int = _LEFT_OUT_NS) -> None:
        """Turns what sinks say they dropped since the last look into ``loss`` rows, and what left out sources did not see for ``since_ns``."""
        for name, told_ns in self._left_out_ns.items():
            if now_ns - told_ns >= since_ns:
                self._left_out_ns[name] = now_ns
                self.take(_unknown_loss(name, told_ns, now_ns))
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
        """Takes what is still on its way, closes sources, then sinks, then the store. The fault of one does not stop the others."""
        sources = list(self.sources)
        for source in sources:
            self._attempt(source.name, partial(self._empty, source))
        self._attempt("correlator", lambda: self.advance(boot_ns()))
        closing: list[Closing] = [*sources, *self.sinks, *self.closing]
        for one in closing:
            self._attempt(getattr(one, "name", type(one).__name__), one.close)
        self._attempt("losses", lambda: self._count_losses(boot_ns(), since_ns=0))  # what they could not deliver any more
        self.store.append(self._waiting)
        self.store.close()

    def _empty(self, source: Source) -> None:
        now_ns, last = boot_ns(), getattr(source, "finish", None)
        for drained in self._drain(source, partial(last, wait=time.sleep) if last else source.drain, now_ns):
            for batch in self._filtered(drained, now_ns):
                self.take(batch)

    def _attempt(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - what is done after it must be done
            self._failed(name, error)
