"""The kernel as a source: rings drained every tick, aggregation maps read out every interval, losses counted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import numpy as np

from agent.batch import Batch, make
from agent.kernel.bpf import HashMap
from agent.kernel.load import Family, Loaded
from agent.kernel.ring import RingReader, SharedArray, Sums
from agent.probes import Aggregate, Ring
from agent.tables import TABLES

#: Nobody is still inside a program that chose its map this long after the slot was flipped.
GRACE_NS = 5_000_000


class KernelSource:
    """Reads what the loaded families produce. Implements ``agent.batch.Source``.

    interval_ns: length of the aggregation intervals. ``listen(map, callback)`` hands each drained record array of a ring to a
    callback too (for families that drive others, as exec does). ``adjust[table]`` changes aggregated rows in place before they
    go on. Raises OSError where a map cannot be used.
    """

    name = "kernel"

    def __init__(self, loaded: Loaded, interval_ns: int = 1_000_000_000) -> None:
        self.loaded, self.interval_ns = loaded, interval_ns
        self._rings: list[tuple[Ring, RingReader]] = []
        self._aggregates: list[tuple[Aggregate, tuple[HashMap, HashMap], Sums | None]] = []
        self._listeners: dict[str, list[Callable[[np.ndarray], None]]] = {}
        self.adjust: dict[str, Callable[[np.ndarray], None]] = {}
        self._flipped_ns = self._started_ns = self._checked_ns = 0
        self._read_due = False
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
                self._rings.append((ring, RingReader(family.maps[ring.map], dtype(ring.wire))))
        for one in family.probe.aggregates:
            if all(m in family.maps for m in one.maps):
                first, second = (HashMap(family.maps[m], dtype(one.key), dtype(one.value)) for m in one.maps)
                sums = Sums(family.maps[one.sums], dtype(one.key), dtype(one.value), one.places) if one.sums else None
                self._aggregates.append((one, (first, second), sums))

    def listen(self, ring: str, callback: Callable[[np.ndarray], None]) -> None:
        self._listeners.setdefault(ring, []).append(callback)

    @property
    def live_since_ns(self) -> int:
        """When the interval began that is counted into now, CLOCK_BOOTTIME."""
        return self._flipped_ns

    def fds(self) -> list[int]:
        """Rings whose records come with a wake-up."""
        return [reader.fd for ring, reader in self._rings if ring.wake]

    def drain(self, now_ns: int) -> Iterator[Batch]:
        for ring, reader in self._rings:
            records = reader.drain()
            if len(records):
                yield from ring.decode(records)
                for callback in self._listeners.get(ring.map, ()):
                    callback(records)
        if self._aggregates:
            yield from self._turn(now_ns)
        yield from self._losses(now_ns)

    def _turn(self, now_ns: int) -> Iterator[Batch]:
        """Flips the slot once an interval, and reads the resting maps once nobody writes them any more."""
        if not self._flipped_ns:
            self._flipped_ns = self._started_ns = now_ns
        if self._read_due and now_ns - self._flipped_ns >= GRACE_NS:
            self._read_due = False
            yield from self._read_resting()
        elif not self._read_due and now_ns - self._flipped_ns >= self.interval_ns:
            self._started_ns, self._flipped_ns = self._flipped_ns, now_ns
            self.control["slot"] ^= 1
            self._read_due = True

    def _read_resting(self) -> Iterator[Batch]:
        resting = int(self.control["slot"][0]) ^ 1
        for one, maps, sums in self._aggregates:
            keys, values = maps[resting].read()
            maps[resting].drop(keys)
            if sums:
                more = sums.take(resting)
                keys, values = np.concatenate((keys, more[0])), np.concatenate((values, more[1]))
            if len(keys):
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
        lossy = np.flatnonzero(delta)
        stage = TABLES["loss"].code("stage", "kernel")
        names = [self.loaded.counted[i].encode() for i in lossy]
        yield make("loss", len(lossy), t_ns=now_ns, stage=stage, source=names, count=delta[lossy].astype(np.int64),
                   from_ns=self._checked_ns, to_ns=now_ns)  # fmt: skip
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

    def close(self) -> None:
        """Unmaps the rings and detaches every program that the loader attached."""
        for _, reader in self._rings:
            with contextlib.suppress(BufferError):
                reader.close()
        self._rings.clear()
        for family in self.loaded.families.values():
            for fd in family.links.values():
                os.close(fd)
            family.links.clear()
