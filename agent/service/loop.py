"""The agent's one thread: drains sources, advances the correlator, feeds the sinks. It never blocks on any of them.

It works on a steady beat: each BEAT_NS it drains the sources that have something, and once a second all of them. Their
rows go on as one batch per table. The correlator judges whole seconds, so it advances once a second; at each beat while
the clock has just been changed.
Rings and sockets hold seconds, and what must be fast (clock notices) is a process of its own. Between beats a source is
drained only if a descriptor of it is readable, and its rows wait for the beat; or at its ``due_ns``.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import NamedTuple

import numpy as np

from agent.batch import Batch, Loss, losses
from agent.columns import NULL_I64
from agent.common.clocks import boot_ns
from agent.common.copies import together
from agent.common.faults import AGAIN_NS, Faults
from agent.common.pace import BEAT_NS, WATERMARK_NS, Pace, beat_after, second_of
from agent.contracts import Closing, Due, Filter, Finishing, Pending, Readable, Sink, Source, Waking
from agent.correlate.correlator import Correlator
from agent.log import log_message
from agent.service.containers import Containers
from agent.store.writer import Writer
from agent.tables import TABLES

#: Wake-ups in a row, less than _PAUSE_S apart, that are served at once. From then on each waits for _PAUSE_S: a
#: descriptor that is readable and never read, by whichever fault, must not cost a processor.
_AT_ONCE, _PAUSE_S = 16, 0.010
_SECOND_NS = 1_000_000_000


class _Call(NamedTuple):
    """A function to call when a socket is readable. Descriptors of sources have the source instead."""

    back: Callable[[], None]


class Loop:
    """Sources in, sinks out. ``totals`` counts rows by table, ``lost`` records by (stage, source) since the start;
    ``lost_unknown``: the losses of unknown size.

    store: takes every row first. containers: knows where the rows' processes run. filters: each gets the output of the
    one before, and returns what goes on. each_second: called with CLOCK_BOOTTIME ns. removed: called with a source that
    is left out. Optional methods of parts are in agent/contracts.py.
    ``faults``: no part's fault ends the loop (agent/common/faults.py). A source's fault is a ``loss`` row without a
    count, a sink's is one with a count. A batch at which a filter fails goes on unchanged. Rows that the correlator has
    not judged are stored all the same (``unevaluated``).
    """

    def __init__(
        self,
        sources: list[Source],
        store: Writer,
        correlator: Correlator,
        sinks: list[Sink],
        containers: Containers | None = None,
    ) -> None:
        self.sources: list[Source] = []
        self.store, self.correlator, self.sinks = store, correlator, sinks
        self.totals: Counter[str] = Counter()
        self.lost: Counter[tuple[str, str]] = Counter()
        self.lost_unknown: set[tuple[str, str]] = set()
        self.faults = Faults()
        self.closing: list[Closing] = []
        self.removed: list[Callable[[Source], None]] = []
        self.each_second: list[Callable[[int], None]] = []
        self.stopping = False
        self.filters: list[Filter] = []
        self.containers = containers or Containers()
        self._held: list[Batch] = []
        self._waiting: list[Batch] = []
        self._second_ns = self._advanced_ns = self._changed_ns = 0
        self._pace = Pace()
        self._sink_losses: dict[tuple[str, str], int] = {}
        self._not_offered: Counter[str] = Counter()
        self._not_judged = 0
        self.selector = selectors.DefaultSelector()
        self._due: list[tuple[Source, Due]] = []
        self._asked: list[tuple[Source, Pending]] = []
        for source in sources:
            self.add(source)

    def add(self, source: Source) -> None:
        """One source more, drained after the others."""
        self.sources.append(source)
        self.faults.whole(source.name, boot_ns())
        self._due += [(source, source)] if isinstance(source, Due) else []
        self._asked += [(source, source)] if isinstance(source, Pending) else []
        for fd in source.fds() if isinstance(source, Readable) else ():
            self.selector.register(fd, selectors.EVENT_READ, source)

    def _remove(self, source: Source) -> None:
        """Leaves the source out and closes it: its programs would go on filling rings that nothing drains."""
        self.sources.remove(source)
        for callback in self.removed:
            self.faults.attempt(_name(callback), callback, source, otherwise=None)
        self._due = [(left, due) for left, due in self._due if left is not source]
        self._asked = [(left, asked) for left, asked in self._asked if left is not source]
        for key in [k for k in self.selector.get_map().values() if k.data is source]:
            self.selector.unregister(key.fileobj)
        self.faults.attempt(f"end of {source.name}", source.close, otherwise=None)

    @property
    def failures(self) -> dict[str, str]:
        """Parts that failed -> their last fault, in words."""
        return self.faults.failures

    def unevaluated(self) -> dict[str, int]:
        """Rows that the correlator did not take into account, by reason (``Correlator.losses``); ``faults``: batches at
        which it failed, or that came after that.
        """
        return {**self.correlator.losses(), "faults": self._not_judged}

    def on_readable(self, sock: socket.socket, callback: Callable[[], None]) -> None:
        """Calls back from the loop when the socket is readable."""
        self.selector.register(sock, selectors.EVENT_READ, _Call(callback))

    def run(self, until_ns: int = 0) -> None:
        """Until ``stopping``, or CLOCK_BOOTTIME reaches until_ns."""
        beat_ns, in_a_row = beat_after(boot_ns() - BEAT_NS // 2), 0
        while not self.stopping and (not until_ns or boot_ns() < until_ns):
            readable = self.selector.select(self._rest_s(beat_ns))
            self._pace.waited()
            for key, _ in readable:
                self._serve(key)
            now_ns, held = boot_ns(), len(self._held)
            due = [source for source, due in self._due if 0 < due.due_ns <= now_ns]
            for source in due:
                self._collect_between(source, now_ns)
            if now_ns >= beat_ns:
                beat_ns = beat_after(now_ns + BEAT_NS // 2)
                self.step(now_ns)
            elif len(self._held) > held:  # rows of a source that was due
                self._hand_on(now_ns)
                self._store()
            in_a_row = in_a_row + 1 if readable or due else 0
            if in_a_row > _AT_ONCE:
                time.sleep(min(_PAUSE_S, self._rest_s(beat_ns)))

    def _serve(self, key: selectors.SelectorKey) -> None:
        """Drains the source, or calls the function, of a readable descriptor."""
        if isinstance(key.data, _Call):
            self.faults.attempt(_name(key.data.back), key.data.back, otherwise=None)
            if self.faults.out(_name(key.data.back)):
                self.selector.unregister(key.fileobj)
        elif key.data in self.sources:
            self._collect_between(key.data, boot_ns())

    def _rest_s(self, beat_ns: int) -> float:
        """How long to wait for something to happen: until the next beat, or until the first source is due."""
        due = [due_ns for _, one in self._due if (due_ns := one.due_ns)]
        return max(0, min([beat_ns, *due]) - boot_ns()) / 1e9

    def step(self, now_ns: int) -> None:
        """One beat."""
        second = second_of(now_ns) > second_of(self._second_ns)
        for source in list(self.sources) if second else self._wanted(now_ns):
            self._collect(source, source.drain, now_ns)
            self._pace.rest()
        if self._held:
            self._hand_on(now_ns)
        if second or self._changed_ns > self._advanced_ns:
            self.advance(now_ns - WATERMARK_NS)
        elif self._waiting:
            self._store()
        if second:
            self._second_ns = now_ns
            self._count_losses(now_ns)
            for callback in self.each_second:
                self._pace.rest()
                self.faults.attempt(_name(callback), callback, now_ns, otherwise=None)

    def _wanted(self, now_ns: int) -> Iterator[Source]:
        """The sources with something to drain."""
        for source, asked in list(self._asked):
            try:
                wanted = asked.pending(now_ns)
            except Exception:  # noqa: BLE001 - its drain reports the fault
                wanted = True
            if wanted:
                yield source

    def _collect_between(self, source: Source, now_ns: int) -> None:
        """Between two beats."""
        self._collect(source, source.woken if isinstance(source, Waking) else source.drain, now_ns)

    def _collect(self, source: Source, read: Callable[[int], Iterable[Batch]], now_ns: int) -> None:
        self._held += self._drain(source, read, now_ns)

    def _hand_on(self, now_ns: int) -> None:
        """Hands on the rows since the last beat, one batch per table."""
        held, self._held = self._held, []
        by_table: dict[str, list[np.ndarray]] = {}
        for batch in held:
            by_table.setdefault(batch.table, []).append(batch.rows)
        for table, parts in by_table.items():
            for batch in self._filtered(Batch(table, together(parts)), now_ns):
                self.take(batch)
            self._pace.rest()

    def _drain(self, source: Source, read: Callable[[int], Iterable[Batch]], now_ns: int) -> list[Batch]:
        """The batches of ``read``. If it fails: those before the fault, which are no longer in the kernel, and a
        ``loss`` row.
        """
        batches: list[Batch] = []
        try:
            batches.extend(read(now_ns))
            self.faults.whole(source.name, now_ns)
        except Exception as error:  # noqa: BLE001 - one source's fault must not stop the others
            batches.append(self.faults.lost(source.name, now_ns))
            if self.faults.failed(source.name, error):
                self._remove(source)
        return batches

    def _filtered(self, batch: Batch, now_ns: int) -> Iterable[Batch]:
        """Rows that are too many are better than none."""
        batches = [batch]
        for one in self.filters:
            batches = [out for each in batches for out in self._through(one, each, now_ns)]
        return batches

    def _through(self, one: Filter, batch: Batch, now_ns: int) -> list[Batch]:
        return self.faults.attempt(f"{one.name} of {batch.table}", lambda: list(one(batch, now_ns)), otherwise=[batch])

    def take(self, batch: Batch) -> None:
        """One batch into everything that follows."""
        if not len(batch.rows):
            return
        self.faults.attempt("container ids", self.containers.fill, batch, otherwise=None)
        self.totals[batch.table] += len(batch.rows)
        if batch.table == "loss":
            self._note_losses(batch.rows)
        elif batch.table == "clock_change":
            self._changed_ns = max(self._changed_ns, int(batch.rows["t_ns"].max()))
        self._waiting.append(batch)
        if self.faults.out("correlator"):
            self._not_judged += 1
        else:
            self._not_judged += (
                self.faults.attempt("rows for the correlator", self.correlator.feed, batch, otherwise=1) or 0
            )
        self._offer(batch)

    def _offer(self, batch: Batch) -> None:
        for sink in self.sinks:
            self._not_offered[sink.name] += (
                self.faults.attempt(sink.name, sink.offer, batch, otherwise=len(batch.rows)) or 0
            )

    def advance(self, watermark_ns: int) -> None:
        """Moves the correlator on, and writes what came together with the watermark, so that a replay sees the same."""
        findings = self.faults.attempt("correlator", self._advanced, watermark_ns, otherwise=None)
        self._not_judged += findings is None
        for new in self.correlator.guard.new_failures():
            log_message(f"tickscope: {new}")
        for batch in findings or ():
            self.faults.attempt("places of findings", self.containers.place, batch, otherwise=None)
            self.totals[batch.table] += len(batch.rows)
            self._offer(batch)
        self._store(tick_ns=watermark_ns)
        if findings:
            self.store.append(findings)
        self._advanced_ns = watermark_ns

    def _store(self, tick_ns: int | None = None) -> None:
        """Has what came since the last time written. tick_ns: the watermark to which the correlator was moved then."""
        before, self._waiting = self._waiting, []
        if before or tick_ns is not None:
            self.store.append(before, tick_ns=tick_ns)

    def _advanced(self, watermark_ns: int) -> list[Batch]:
        findings: list[Batch] = []
        for found in self.correlator.advancing(watermark_ns):
            findings += found
            self._pace.rest()
        return findings

    def _note_losses(self, rows: np.ndarray) -> None:
        stages = TABLES["loss"].by_name["stage"].names
        for row in rows:
            key = stages[row["stage"]], row["source"].decode()
            if row["count"] == NULL_I64:
                self.lost_unknown.add(key)
            else:
                self.lost[key] += max(int(row["count"]), 0)

    def _count_losses(self, now_ns: int, since_ns: int = AGAIN_NS) -> None:
        """Turns what sinks dropped since the last call into ``loss`` rows, and what left out sources did not
        see for ``since_ns``.
        """
        for missing in self.faults.missing(now_ns, since_ns):
            self.take(missing)
        for sink in self.sinks:
            new = self.faults.attempt(f"{sink.name} losses", sink.losses, otherwise=None)
            for reason, count in {**(new or {}), "failed": self._not_offered[sink.name]}.items():
                key = (sink.name, reason)
                more = count - self._sink_losses.get(key, 0)
                if more > 0:
                    self.take(losses("export", Loss(f"{sink.name} {reason}", more, now_ns - _SECOND_NS, now_ns)))
                self._sink_losses[key] = count

    def finish(self) -> None:
        """Takes what is still on its way, closes sources, then sinks, then the store. The fault of one does not stop
        the others.
        """
        sources = list(self.sources)
        for source in sources:
            self._end(source.name, partial(self._empty, source))
        self._end("end of the correlator", lambda: self.advance(boot_ns()))
        closing: list[Closing] = [*sources, *self.sinks, *self.closing]
        for one in closing:
            self._end(one.name, one.close)
        self._end("losses", lambda: self._count_losses(boot_ns(), since_ns=0))  # what they could not deliver any more
        self._end("store", lambda: self.store.append(self._waiting))
        self.store.close()

    def _empty(self, source: Source) -> None:
        now_ns = boot_ns()
        last = partial(source.finish, wait=time.sleep) if isinstance(source, Finishing) else source.drain
        self._collect(source, last, now_ns)
        self._hand_on(now_ns)

    def _end(self, name: str, work: Callable[[], None]) -> None:
        """Also of a part that is left out."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - what is done after it must be done
            self.faults.failed(name, error)


def _name(callback: Callable[..., object]) -> str:
    return callback.__qualname__ if isinstance(callback, (FunctionType, MethodType)) else type(callback).__name__
