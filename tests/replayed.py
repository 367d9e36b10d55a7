"""Sessions of the laboratory (tests/unit/data/lab) happen again, without a kernel: their recorded rows, and the
findings that the correlator makes of them, go to a store (``fill``) or to the metrics page of a node (``Replayed``).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from agent.batch import Batch, make
from agent.cli.cells import _BOOT_TIMES, _WALL_TIMES
from agent.columns import NULL_I64
from agent.common.clocks import boot_ns
from agent.common.host import boot_id
from agent.correlate.correlator import Correlator
from agent.store.frames import Head
from agent.store.hot import HotStore
from agent.store.recording import Recording
from agent.store.segments import started_ns
from exporters.aggregate import MetricStore
from exporters.limiter_use import LimiterUse
from exporters.observed import StatusMetrics
from exporters.open_findings import OpenFindings
from exporters.prometheus import PrometheusEndpoint
from tests.lab.small import NAME, SECOND, unpack

LAB = Path(__file__).parent / "unit/data/lab"
#: CLOCK_REALTIME at boot of the host of ``filled``, Unix ns: 2026-11-20 09:13:20 UTC.
BOOTED_NS = 1_795_166_000 * SECOND
#: A running agent samples the wall clock's offset this often.
SAMPLED_NS = 10 * SECOND
#: Until a finding is closed: seconds without its symptom.
_QUIET_S = 12
_WALL_OFFSETS = {"real_mono_ns", "real_mono_before_ns", "real_mono_after_ns", "real_raw_ns"}
_STARTS = {name for name in _BOOT_TIMES if name.endswith("_start_ns")}
#: What `tickscope status` says of an agent that is well: this process, two probes, a store, a Collector, Slack.
WELL = {
    "processes": [{"pid": os.getpid(), "role": "agent"}],
    "probes": [{"probe": "tcp", "state": "attached"}, {"probe": "clock", "state": "attached"}],
    "store": {"state": "ok", "bytes": 4096, "segments": 1, "waiting_rows": 0, "dropped_rows": 0},
    "export": {
        "otlp": {"sent_spans": 1, "sent_logs": 0, "sent_points": 9, "unsampled": 0},
        "slack": {"state": "ok", "sent": 1, "retries": 0, "dropped": 0},
    },
}
Event = Batch | int


def kept(name: str) -> tuple[Head, list[Event]]:
    """The head, the batches and the watermarks of a recording of ``LAB``."""
    with tempfile.NamedTemporaryFile() as file:
        unpack(LAB / name / NAME, Path(file.name))
        recording = Recording(file.name)
        return recording.head, list(recording.events())


def session(name: str) -> Iterator[Event]:
    """What a recorded agent's correlator got, and watermarks until its findings have closed."""
    _, events = kept(name)
    _, last_ns = spent(events)
    yield from events
    yield from (last_ns + n * SECOND for n in range(1, _QUIET_S))


def spent(events: Iterable[Event]) -> tuple[int, int]:
    """The first and the last watermark."""
    ticks = [event for event in events if not isinstance(event, Batch)]
    return ticks[0], ticks[-1]


class Standing:
    """Processes that live in place of those that make limiter decisions in recordings: a context manager."""

    def __init__(self) -> None:
        self._of: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Standing:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._of.values():
            process.kill()
            process.wait()

    def replace(self, batch: Batch, *, add: bool) -> Batch:
        """The batch with their pids and start times. add: start one for each process in it."""
        rows = batch.rows.copy()
        if "proc_start_ns" not in (rows.dtype.names or ()):
            return batch
        for pid in np.unique(rows["pid"]).tolist() if add else list(self._of):
            if pid > 0 and pid not in self._of:
                self._of[pid] = subprocess.Popen(["sleep", "3600"])
        for pid, process in self._of.items():
            mine = rows["pid"] == pid
            rows["pid"][mine], rows["proc_start_ns"][mine] = process.pid, started_ns(process.pid) or 0
        return Batch(batch.table, rows)


def moved(events: Iterable[Event], later_ns: int, wall_later_ns: int, started_later_ns: int) -> Iterator[Event]:
    """The same, so much later by CLOCK_BOOTTIME and by the wall clock; and the starts of processes."""
    for event in events:
        if not isinstance(event, Batch):
            yield event + later_ns
            continue
        rows = event.rows.copy()
        for names, by_ns in (
            (_BOOT_TIMES - _STARTS, later_ns),
            (_STARTS, started_later_ns),
            (_WALL_TIMES, wall_later_ns),
            (_WALL_OFFSETS, wall_later_ns - later_ns),
        ):
            for name in names & set(rows.dtype.names or ()):
                rows[name][rows[name] != NULL_I64] += by_ns
        yield Batch(event.table, rows)


def _offset(t_ns: int, real_mono_ns: int, cut: int = 1) -> Batch:
    """A row of the history of the wall clock's offset from CLOCK_MONOTONIC. cut: 0 if it did not change."""
    return make("clock_offset", 1, t_ns=t_ns, real_mono_ns=real_mono_ns, boot_mono_ns=0, err_ns=1000, cut=cut)


def _offsets(batch: Batch, booted_ns: int) -> Iterator[tuple[int, Batch]]:
    """After each change of the wall clock: the Unix time of boot by that clock, and its row."""
    for row in batch.rows if batch.table == "clock_change" else ():
        if row["size_ns"] != NULL_I64 and row["ret"] >= 0:
            booted_ns += int(row["size_ns"])
            yield booted_ns, _offset(int(row["t_ns"]), booted_ns)


def fill(
    store: HotStore,
    *names: str,
    ahead_s: float = 0.0,
    standing: Standing | None = None,
    booted_ns: int | None = None,
) -> None:
    """Writes recordings of ``LAB`` as an agent would have: one after the other, moved so that the last one ends now.
    ahead_s: the last seconds are written when it is their time, so this takes as long. booted_ns: they are not moved,
    and their wall times are those of a host that was booted at this Unix time, whose clock changed when theirs did.
    """
    recordings = [kept(name) for name in names]
    now_ns = boot_ns() + round(ahead_s * 1e9)
    wall_ns = time.time_ns() - boot_ns()
    left_ns = sum(spent(events)[1] - spent(events)[0] for _, events in recordings)
    store.append([_offset(now_ns - left_ns, wall_ns) if booted_ns is None else _offset(1, booted_ns)])
    started_later_ns = sampled_ns = 0
    for head, events in recordings:
        again: Iterable[Event] = events
        if booted_ns is None:
            first_ns, last_ns = spent(events)
            left_ns -= last_ns - first_ns
            later_ns = now_ns - left_ns - last_ns
            started_later_ns = started_later_ns or later_ns  # the same process in each recording
            again = moved(events, later_ns, later_ns + wall_ns - head.real_mono_ns, started_later_ns)
        correlator = Correlator()
        for event in again:
            if isinstance(event, Batch):
                if standing is not None:
                    event = standing.replace(event, add=event.table == "limiter_decision")
                correlator.feed(event)
                store.append([event])
                if booted_ns is not None:
                    for changed_ns, row in _offsets(event, booted_ns):
                        store.append([row])
                        booted_ns = changed_ns
            else:
                if booted_ns is not None and event // SAMPLED_NS > sampled_ns // SAMPLED_NS:
                    store.append([_offset(event, booted_ns, cut=0)])
                    sampled_ns = event
                if ahead_s:
                    time.sleep(max(0.0, (event - boot_ns()) / 1e9))
                store.append(correlator.advance(event), event)


def filled(path: str | Path, name: str) -> None:
    """A store at this path with one recording, at its own times, of a host that was booted at ``BOOTED_NS``."""
    store = HotStore(path, kept(name)[0].boot_id, "node7", seal_command=())
    fill(store, name, booted_ns=BOOTED_NS)
    store.close()


class Replayed:
    """store: the metrics, as the agent of this host would have them after the events so far."""

    def __init__(self, host: str = "web1") -> None:
        self._host = host
        self.store = MetricStore()
        self._sinks = (self.store, LimiterUse(self.store), OpenFindings(self.store, host))
        self.correlator = Correlator()
        self.status = dict(WELL)
        self._observe = StatusMetrics(self.store, "1", lambda: self.status)
        self.observed(0)

    def served(self) -> PrometheusEndpoint:
        """The page, on a free port. Its own metrics are on it."""
        resource = {"service.name": "tickscope", "host.name": self._host}
        page = PrometheusEndpoint(("127.0.0.1", 0), self.store, resource)
        self._observe = StatusMetrics(self.store, "1", lambda: self.status, page)
        self.observed(0)
        return page

    def observed(self, now_ns: int) -> None:
        """Sets the metrics of the agent's own state."""
        self._observe(now_ns)

    def offer(self, *batches: Batch) -> None:
        for batch in batches:
            for sink in self._sinks:
                sink.offer(batch)

    def seconds(self, events: Iterable[Event]) -> Iterator[int]:
        """Yields 0, 1, ... for each watermark, when the store has what happened until then."""
        second = 0
        for event in events:
            if isinstance(event, Batch):
                self.correlator.feed(event)
                self.offer(event)
            else:
                self.offer(*self.correlator.advance(event))
                yield second
                second += 1

    def play(self, events: Iterable[Event], until: int | None = None) -> None:
        """All of it, or so many seconds."""
        for second in self.seconds(events):
            if second == until:
                return


def main(path: str, *names: str) -> None:
    """``python -m tests.replayed DIR NAME...`` fills a store to look at."""
    store = HotStore(path, boot_id(), "web1", seal_command=())
    fill(store, *names)
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
