"""The metrics page of a node where a session of the laboratory (tests/unit/data/lab) happens again: the recorded rows,
and the findings that the correlator makes of them, go to the sinks that the agent has. Needs no kernel.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from agent.batch import Batch
from agent.correlate.correlator import Correlator
from agent.store.recording import Recording
from exporters.aggregate import MetricStore
from exporters.limiter_use import LimiterUse
from exporters.observed import StatusMetrics
from exporters.open_findings import OpenFindings
from exporters.prometheus import PrometheusEndpoint
from tests.lab.small import NAME, unpack

KEPT = Path(__file__).parent / "unit" / "data" / "lab"
SECOND = 10**9
#: Until a finding is closed: seconds without its symptom.
_QUIET_S = 12
#: What `tickscope status` says of an agent that is well: this process, two probes, a store, a Collector.
WELL = {
    "processes": [{"pid": os.getpid(), "role": "agent"}],
    "probes": [{"probe": "tcp", "state": "attached"}, {"probe": "clock", "state": "attached"}],
    "store": {"state": "ok", "bytes": 4096, "segments": 1, "waiting_rows": 0, "dropped_rows": 0},
    "export": {"otlp": {"sent_spans": 1, "sent_logs": 0, "sent_points": 9, "unsampled": 0}},
}


def session(name: str) -> Iterator[Batch | int]:
    """What a recorded agent's correlator got, and watermarks until its findings have closed."""
    with TemporaryDirectory() as room:
        unpack(KEPT / name / NAME, Path(room) / "recording")
        last_ns = 0
        for event in Recording(Path(room) / "recording").events():
            yield event
            last_ns = event if isinstance(event, int) else last_ns
        yield from (last_ns + n * SECOND for n in range(1, _QUIET_S))


class Replayed:
    """store: the metrics, as the agent would have them after the events so far."""

    def __init__(self) -> None:
        self.store = MetricStore()
        self._sinks = (self.store, LimiterUse(self.store), OpenFindings(self.store))
        self.correlator = Correlator()
        self.status = dict(WELL)
        self._observe = StatusMetrics(self.store, "1", lambda: self.status)
        self.observed(0)

    def served(self) -> PrometheusEndpoint:
        """The page, on a free port. Its own metrics are on it."""
        page = PrometheusEndpoint(("127.0.0.1", 0), self.store, {"service.name": "tickscope"})
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

    def seconds(self, events: Iterable[Batch | int]) -> Iterator[int]:
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

    def play(self, events: Iterable[Batch | int], until: int | None = None) -> None:
        """All of it, or so many seconds."""
        for second in self.seconds(events):
            if second == until:
                return
