"""The kernel as a source: rings drained every tick, aggregation maps read out every interval, losses counted."""

from __future__ import annotations

import contextlib
import os
import select
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from agent.batch import Batch, Loss, losses
from agent.common.clocks import boot_ns
from agent.common.faults import Faults
from agent.common.pace import interval_of
from agent.contracts import Due, Finishing, Parted, Pending, Readable, Source, Waking
from agent.kernel.bpf import HashMap
from agent.kernel.loaded_families import Family, Loaded
from agent.kernel.probe import Aggregate, Ring
from agent.kernel.ring import RingReader, SharedArray, Sums

#: After the flip a program may still write into the resting map.
GRACE_NS = 5_000_000
#: How often the lost records of a part that is left out are reported.
_REPORT_NS = 1_000_000_000


def _named(take: Callable[[np.ndarray], None]) -> str:
    return getattr(take, "__qualname__", type(take).__name__)


class KernelSource(Finishing, Parted, Waking, Readable, Pending, Due):
    """Reads what the loaded families produce. Implements ``agent.contracts.Source``.

    interval_ns: length of the aggregation intervals. ``subscribe(map, take)`` hands each batch of a ring that is of no
    table to ``take``, as the ring's decoder returns it. ``adjust[table]`` changes aggregated rows in place before they
    go on. No interval ends while ``hold()``. Raises OSError where a map cannot be used.

    Each ring, aggregate and subscriber stands alone (``faults``, agent/common/faults.py): what one's fault may have
    cost is a ``loss`` row. One that is left out is emptied all the same, so that its producers go on, and each of its
    records is counted as lost.
    """

    name = "kernel"

    def __init__(self, loaded: Loaded, interval_ns: int = 1_000_000_000) -> None:
        self.loaded, self.interval_ns = loaded, interval_ns
        self.faults = Faults()
        self._skipped: Counter[str] = Counter()
        self._skips_reported_ns = 0
        self._owners: dict[str, Family] = {}
        self._rings: list[tuple[Ring, RingReader]] = []
        self._aggregates: list[tuple[Aggregate, tuple[HashMap, HashMap], Sums | None]] = []
        self._subscribers: dict[str, list[Callable[[np.ndarray], None]]] = {}
        self.adjust: dict[str, Callable[[np.ndarray], None]] = {}
        self.hold: Callable[[], bool] = lambda: False
        self._flipped_ns = self._started_ns = 0
        self._checked_ns = boot_ns()
        self._read_due = False
        self._wakes = select.epoll()
        if not loaded.shared:
            return
        self.control = SharedArray(loaded.shared["control"], loaded.wire.dtype("control")).values
        self._lost = SharedArray(loaded.shared["lost"], "<u8").values
        self._lost_before = self._lost.tobytes()
        for family in loaded.families.values():
            self._open(family)

    def _open(self, family: Family) -> None:
        dtype = self.loaded.wire.dtype
        for ring in family.probe.rings:
            if ring.map in family.maps:
                self._owners[ring.map] = family
                reader = RingReader(family.maps[ring.map], dtype(ring.wire))
                self._rings.append((ring, reader))
                # Edge-triggered: a ring with records of which none asked for a wake-up must not wake the loop.
                self._wakes.register(reader.fd, select.EPOLLIN | select.EPOLLET)
        for one in family.probe.aggregates:
            if all(m in family.maps for m in one.maps):
                self._owners[one.maps[0]] = family
                first, second = (HashMap(family.maps[m], dtype(one.key), dtype(one.value)) for m in one.maps)
                sums = Sums(family.maps[one.sums], dtype(one.key), dtype(one.value), one.places) if one.sums else None
                self._aggregates.append((one, (first, second), sums))

    def subscribe(self, ring: str, take: Callable[[np.ndarray], None]) -> None:
        self._subscribers.setdefault(ring, []).append(take)

    def unsubscribe(self, source: Source) -> None:
        """Its methods get no more batches, which nothing would drain."""
        for takes in self._subscribers.values():
            takes[:] = [take for take in takes if getattr(take, "__self__", None) is not source]

    @property
    def live_since_ns(self) -> int:
        """When the interval began that is counted into now, CLOCK_BOOTTIME."""
        return self._flipped_ns

    def fds(self) -> list[int]:
        """Readable when a record came with a wake-up."""
        return [self._wakes.fileno()]

    @property
    def due_ns(self) -> int:
        """When the maps of the last interval are at rest; 0 while ``hold()``, so that one wake-up is enough."""
        return self._flipped_ns + GRACE_NS if self._read_due and not self.hold() else 0

    def pending(self, now_ns: int) -> bool:
        """Whether a ring has records, or an interval ends."""
        return self._turn_due(now_ns) or any(reader.producing() for _, reader in self._rings)

    def drain(self, now_ns: int) -> Iterator[Batch]:
        for ring, reader in self._rings:
            if reader.producing():
                yield from self._part(ring.map, partial(self._read_ring, ring, reader), now_ns)
        if self._aggregates:
            yield from self._turn(now_ns)
        yield from self._losses(now_ns)
        if self._skipped and now_ns - self._skips_reported_ns >= _REPORT_NS:
            yield from self._skips(now_ns)

    def woken(self, now_ns: int) -> Iterator[Batch]:
        """Reads the rings that asked for it, and the maps of the last interval."""
        woken = {fd for fd, _ in self._wakes.poll(0)}
        for ring, reader in self._rings:
            if reader.fd in woken and reader.producing():
                yield from self._part(ring.map, partial(self._read_ring, ring, reader), now_ns)
        if self._read_due:
            yield from self._turn(now_ns)

    def _part(self, name: str, read: Callable[[], Iterator[Batch]], now_ns: int) -> Iterator[Batch]:
        """What a part yields; where it fails what it yielded before, and a ``loss`` row."""
        out: list[Batch] = []
        try:
            out.extend(read())
            self.faults.whole(name, now_ns)
        except Exception as error:  # noqa: BLE001 - one decoder's fault must not cost the others their records
            if self.faults.out(name):
                self._skipped[name] += 1
            else:
                out.append(self.faults.lost(name, now_ns))
                self._failed(name, error)
        return iter(out)

    def _failed(self, name: str, error: Exception) -> None:
        if self.faults.failed(name, error) and (family := self._owners.get(name)):
            family.problem(
                name,
                f"{name}: {self.faults.failures[name]}: left out until the next start",
                "restart tickscope, and report this as a bug",
            )

    def _read_ring(self, ring: Ring, reader: RingReader) -> Iterator[Batch]:
        records = reader.drain()
        if reader.refusal is not None:
            self.faults.failed(ring.map, reader.refusal)  # ``_part`` counts none in a row: the records are still there
        if self.faults.out(ring.map):
            self._skipped[ring.map] += len(records)
        elif len(records):
            batch = ring.decode(records)
            if isinstance(batch, Batch):
                yield batch
                return
            for take in self._subscribers.get(ring.map, ()):
                self.faults.attempt(f"{ring.map} for {_named(take)}", take, batch, otherwise=None)

    def _skips(self, now_ns: int) -> Iterator[Batch]:
        """Records of parts that are left out."""
        since_ns = self._skips_reported_ns or self._started_ns
        yield losses("ring", *(Loss(name, count, since_ns, now_ns) for name, count in self._skipped.items()))
        self._skipped.clear()
        self._skips_reported_ns = now_ns

    def _turn_due(self, now_ns: int) -> bool:
        """Whether ``_turn`` has something to do; what waits for ``hold`` waits for the next beat."""
        return bool(self._aggregates) and (self._read_due or self._over(now_ns))

    def _over(self, now_ns: int) -> bool:
        """Whether the interval has ended."""
        return interval_of(now_ns, self.interval_ns) > interval_of(self._flipped_ns, self.interval_ns)

    def _turn(self, now_ns: int) -> Iterator[Batch]:
        """Flips the slot once an interval, and reads the maps of the last interval when they are at rest."""
        if not self._flipped_ns:
            self._flipped_ns = self._started_ns = now_ns
        if self._read_due and now_ns - self._flipped_ns >= GRACE_NS:
            self._read_due = False
            yield from self._read_resting(now_ns)
        elif not self._read_due and self._over(now_ns) and not self.hold():
            self._started_ns, self._flipped_ns = self._flipped_ns, now_ns
            self.control["slot"] ^= 1
            self._read_due = True

    def _read_resting(self, now_ns: int) -> Iterator[Batch]:
        for one, maps, sums in self._aggregates:
            yield from self._part(one.maps[0], partial(self._read_maps, one, maps, sums), now_ns)

    def _read_maps(self, one: Aggregate, maps: tuple[HashMap, HashMap], sums: Sums | None) -> Iterator[Batch]:
        resting = int(self.control["slot"][0]) ^ 1
        keys, values = maps[resting].read()
        maps[resting].drop(keys)
        if sums:
            more = sums.take(resting)
            keys, values = np.concatenate((keys, more[0])), np.concatenate((values, more[1]))
        if self.faults.out(one.maps[0]):
            self._skipped[one.maps[0]] += len(keys)
        elif len(keys):
            for batch in one.decode(keys, values, self._flipped_ns - self._started_ns, self._flipped_ns):
                if batch.table in self.adjust:
                    self.adjust[batch.table](batch.rows)
                yield batch

    def _losses(self, now_ns: int) -> Iterator[Batch]:
        if not self.loaded.shared:
            return
        lost = self._lost.tobytes()
        if lost == self._lost_before:
            self._checked_ns = now_ns
            return
        delta = np.frombuffer(lost, "<u8") - np.frombuffer(self._lost_before, "<u8")
        self._lost_before = lost
        yield losses(
            "kernel",
            *(Loss(self.loaded.counted[i], int(delta[i]), self._checked_ns, now_ns) for i in np.flatnonzero(delta)),
        )
        self._checked_ns = now_ns

    def finish(self, now_ns: int, wait: Callable[[float], None]) -> Iterator[Batch]:
        """Everything still in the kernel, both map slots: for the end of a run."""
        yield from self.drain(now_ns)
        for step in (1, 2):
            if self._aggregates and not self._read_due:
                self._started_ns, self._flipped_ns = self._flipped_ns, now_ns + step
                self.control["slot"] ^= 1
                self._read_due = True
            wait(GRACE_NS / 1e9)
            yield from self.drain(now_ns + GRACE_NS * (step + 1))
        if self._skipped:
            yield from self._skips(now_ns)

    def close(self) -> None:
        """Unmaps the rings and detaches every program that the loader attached."""
        self._wakes.close()
        for _, reader in self._rings:
            with contextlib.suppress(BufferError):
                reader.close()
        self._rings.clear()
        for family in self.loaded.families.values():
            for fd in family.links.values():
                os.close(fd)
            family.links.clear()
