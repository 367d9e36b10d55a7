"""A store filled from kept recordings, as an agent would have written it: their rows, moved so that the last one ends
now, and the findings that the correlator makes of them.
"""

from __future__ import annotations

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
from tests.lab.small import unpack

LAB = Path(__file__).parent / "unit/data/lab"
_WALL_OFFSETS = {"real_mono_ns", "real_mono_before_ns", "real_mono_after_ns", "real_raw_ns"}
_STARTS = {name for name in _BOOT_TIMES if name.endswith("_start_ns")}
Event = Batch | int


def kept(name: str) -> tuple[Head, list[Event]]:
    """The head, the batches and the watermarks of a recording of ``LAB``."""
    with tempfile.NamedTemporaryFile() as file:
        unpack(LAB / name / "recording.tsr.xz", Path(file.name))
        recording = Recording(file.name)
        return recording.head, list(recording.events())


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


def fill(store: HotStore, *names: str, ahead_s: float = 0.0, standing: Standing | None = None) -> None:
    """Recordings of ``LAB``, one after the other. ahead_s: the last seconds are written when it is their time, as an
    agent does, so this takes as long.
    """
    recordings = [kept(name) for name in names]
    now_ns = boot_ns() + round(ahead_s * 1e9)
    wall_ns = time.time_ns() - boot_ns()
    left_ns = sum(spent(events)[1] - spent(events)[0] for _, events in recordings)
    sample = {"t_ns": now_ns - left_ns, "real_mono_ns": wall_ns, "boot_mono_ns": 0, "err_ns": 100, "cut": 0}
    store.append([make("clock_offset", 1, **sample)])
    started_later_ns = 0
    for head, events in recordings:
        first_ns, last_ns = spent(events)
        left_ns -= last_ns - first_ns
        later_ns = now_ns - left_ns - last_ns
        started_later_ns = started_later_ns or later_ns  # the same process in each recording
        wall_later_ns = later_ns + wall_ns - head.real_mono_ns
        correlator = Correlator()
        for event in moved(events, later_ns, wall_later_ns, started_later_ns):
            if isinstance(event, Batch):
                if standing is not None:
                    event = standing.replace(event, add=event.table == "limiter_decision")
                correlator.feed(event)
                store.append([event])
            else:
                time.sleep(max(0.0, (event - boot_ns()) / 1e9))
                store.append(correlator.advance(event), event)


def spent(events: Iterable[Event]) -> tuple[int, int]:
    """The first and the last watermark."""
    ticks = [event for event in events if not isinstance(event, Batch)]
    return ticks[0], ticks[-1]


def main(path: str, *names: str) -> None:
    """``python -m tests.replayed DIR NAME...`` fills a store to look at."""
    store = HotStore(path, boot_id(), "web1", seal_command=())
    fill(store, *names)
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
