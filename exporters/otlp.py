"""The OTLP exporter: a sink whose worker thread encodes and sends; the agent's loop is never blocked by it.

A collector that is gone costs nothing but the oldest spans: rows wait in a bounded queue, one request at a time is
tried again with growing pauses, and metrics are only collected once the last ones are through, so that they lose
nothing at all.

A collector that takes no logs is asked once: findings that have just opened are log records, and their spans follow
anyway.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from agent.batch import Batch
from agent.contracts import Owning, Stating
from agent.log import ERROR, say
from exporters.aggregate import MetricStore
from exporters.otlp_settings import OtlpConfig
from exporters.send import HttpSender, Outcome, Sender, failed
from exporters.waiting import BESIDE_TABLES, SPAN_TABLES, Waiting

if TYPE_CHECKING:
    from exporters.grpc_link import GrpcLink

ToWall = Callable[[np.ndarray], np.ndarray]
_TICK_S = 0.2
#: A collector may ask for a pause, not for an end.
MAX_RETRY_AFTER_S = 3600.0
_BACKOFF_S = (1.0, 30.0)
_DOWN_AFTER = 3
#: How a collector says that it does not take a signal.
_NOT_TAKEN = ("HTTP 404", "HTTP 405", "HTTP 415", "HTTP 501", "UNIMPLEMENTED")


class _Request(NamedTuple):
    data: bytes
    items: int


class _Lane:
    """One signal: its sender, the request under way, and its account. Belongs to the worker; the numbers are read by
    all.
    """

    def __init__(self, signal: str, sender: Sender) -> None:
        self.signal, self.sender = signal, sender
        self.request: _Request | None = None
        self.sent = self.rejected = self.failures = self.refusals = 0
        self.last_error = self.unwanted = ""
        self.not_before = self.begun = 0.0

    def stuck_s(self) -> float:
        """How long the request under way has been sent for."""
        begun = self.begun
        return time.monotonic() - begun if begun else 0.0

    def step(self, now: float) -> bool:
        """Tries the request under way, if it is time; True when it is done with."""
        if self.request is None or now < self.not_before:
            return False
        self.begun = time.monotonic()
        try:
            outcome = self.sender.send(self.request.data)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next request may succeed
            outcome = failed(error)
        self.begun = 0.0
        if outcome.status == "retry":
            self.failures += 1
            self.last_error = outcome.message
            pause = min(_BACKOFF_S[1], _BACKOFF_S[0] * 2 ** min(self.failures - 1, 8)) * random.uniform(0.8, 1.2)
            self.not_before = time.monotonic() + max(pause, min(outcome.retry_after_s, MAX_RETRY_AFTER_S))
            return False
        self._settle(outcome, self.request.items)
        self.request = None
        return True

    def _settle(self, outcome: Outcome, items: int) -> None:
        if self.signal == "logs" and outcome.status == "refused" and outcome.message.startswith(_NOT_TAKEN):
            self.unwanted = outcome.message
            return
        lost = items if outcome.status == "refused" else max(0, min(outcome.rejected, items))
        self.failures, self.not_before = 0, 0.0
        self.refusals = self.refusals + 1 if outcome.status == "refused" else 0
        self.sent += items - lost
        self.rejected += lost
        if outcome.message or lost:
            self.last_error = outcome.message or f"{lost} rejected without a reason"


class OtlpExporter(Stating, Owning):
    """Implements agent.contracts.Sink for spans, and reads ``metrics`` (a sink of its own) at each interval.

    config: see exporters.otlp_settings.resolve; at least one target.
    resource: see exporters.resource.describe; ``host.boot.id`` must be in it.
    to_wall: CLOCK_BOOTTIME ns -> Unix ns, arrays of shape (n,); called on the worker thread, late, at encoding.
    """

    name = "otlp"

    def __init__(self, config: OtlpConfig, resource: Mapping[str, str], to_wall: ToWall, metrics: MetricStore) -> None:
        self._config, self._resource, self._to_wall, self._metrics = config, dict(resource), to_wall, metrics
        self._backlog = Waiting(config)
        self._lanes: dict[str, _Lane] = {}
        self._link: GrpcLink | None = None
        self._failure = ""
        self._stop, self._wake = threading.Event(), threading.Event()
        self._worker = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._worker.start()

    def offer(self, batch: Batch) -> None:
        """Keeps a batch for the worker; tables that do not become spans are ignored."""
        wanted = self._config.traces or (self._config.logs if batch.table == "finding" else None)
        if batch.table in SPAN_TABLES | BESIDE_TABLES and wanted is not None and len(batch.rows):
            self._backlog.put(batch, time.monotonic())

    def flush(self, timeout_s: float) -> None:
        """Sends what waits, children or not, for at most ``timeout_s``; what is left is counted as dropped, once. Ends
        the worker.
        """
        again = self._stop.is_set()
        self._stop.set()
        self._wake.set()
        self._worker.join(timeout_s)
        if self._worker.is_alive():
            for lane in self._lanes.values():
                lane.sender.abort()
        under_way = [lane.request for lane in self._lanes.values()]
        self._backlog.give_up(0 if again else sum(request.items for request in under_way if request))

    def close(self) -> None:
        self.flush(2.0)

    def losses(self) -> dict[str, int]:
        """Rows and points that will never reach the collector: ``queue_full``, ``shutdown``, ``rejected``."""
        return {**self._backlog.dropped(), "rejected": sum(lane.rejected for lane in self._lanes.values())}

    def state(self) -> dict[str, object]:
        """endpoint protocol state(ok|retrying|down) sent_spans sent_logs sent_points rejected dropped unsampled
        last_error remedy queued_bytes.

        down: three requests of a signal in a row failed or were refused, one has been under way for twice its time-out,
        or the exporter stopped.
        unsampled: plain decisions that are not in the sample, and rows beyond
        max_spans_per_s, which are no losses.  logs: where the collector takes none, what it said.
        """
        lanes = self._lanes
        worst = max((lane for lane in lanes.values()), key=lambda lane: lane.failures, default=None)
        failures = worst.failures if worst else 0
        refusals = max((lane.refusals for lane in lanes.values()), default=0)
        target = self._config.traces or self._config.metrics or self._config.logs
        # The time-out does not bound looking up a name, nor all addresses of a host together.
        stuck_s = max((lane.stuck_s() for lane in lanes.values()), default=0.0)
        stuck = (
            f"the collector has not answered whole for {stuck_s:.0f} s"
            if target and stuck_s > 2 * target.timeout_s
            else ""
        )
        state = (
            "down"
            if self._failure or stuck or max(failures, refusals) >= _DOWN_AFTER
            else "retrying"
            if failures
            else "ok"
        )
        error = (
            self._failure
            or stuck
            or next(
                (
                    lane.last_error
                    for lane in ([worst] if worst and failures else list(lanes.values()))
                    if lane.last_error
                ),
                "",
            )
        )
        losses = self.losses()
        return {
            "endpoint": target.endpoint if target else "",
            "protocol": self._config.protocol,
            "state": state,
            "sent_spans": lanes["traces"].sent if "traces" in lanes else 0,
            "sent_logs": lanes["logs"].sent if "logs" in lanes else 0,
            "sent_points": lanes["metrics"].sent if "metrics" in lanes else 0,
            **(
                {"logs": f"not taken by the collector: {lanes['logs'].unwanted}"}
                if "logs" in lanes and lanes["logs"].unwanted
                else {}
            ),
            "rejected": losses.pop("rejected"),
            "dropped": sum(losses.values()),
            "unsampled": self._backlog.unsampled,
            "queued_bytes": self._backlog.bytes,
            "last_error": error,
            "remedy": _remedy(error, self._config) if error else "",
        }

    def pids(self) -> list[int]:
        """The gRPC processes that run now (none over HTTP)."""
        return [self._link.pid] if self._link and self._link.pid else []

    def processes(self) -> list[dict[str, Any]]:
        """For ``status``."""
        return [{"pid": pid, "role": "otlp sender"} for pid in self.pids()]

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - the agent goes on without export, and says so in its state
            self._failure = f"the exporter stopped: {type(error).__name__}: {error}"
            say(f"tickscope: otlp: {self._failure}; nothing is exported until the agent is started again", ERROR)

    def _work(self) -> None:
        from exporters.points import PointEncoder
        from exporters.records import records
        from exporters.spans import SpanEncoder
        from exporters.wire import Envelope

        config, envelope = self._config, Envelope(self._resource)
        spans = SpanEncoder(self._resource["host.boot.id"], self._to_wall)
        points = PointEncoder(config.temporality, self._to_wall, time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        self._lanes = {s: _Lane(s, sender) for s, sender in self._senders().items()}
        traces, metrics, logs = (self._lanes.get(signal) for signal in ("traces", "metrics", "logs"))
        due = time.monotonic() + config.interval_s
        while True:
            last = self._stop.is_set()
            now = time.monotonic()
            while True:
                # Also where only logs are wanted: it is what sorts findings into opened and closed.
                if traces is None or traces.request is None:
                    encoded = self._backlog.take(spans, now, everything=last)
                    if traces and encoded:
                        traces.request = _Request(envelope.request(encoded), len(encoded))
                if traces is None or not traces.step(now):
                    break
            if (
                logs
                and logs.request is None
                and (encoded := records(self._backlog.opened(), spans, self._to_wall))
                and not logs.unwanted
            ):
                logs.request = _Request(envelope.request(encoded), len(encoded))
            if logs:
                logs.step(now)
            if metrics:
                if metrics.request is None and (last or now >= due):
                    due = now + config.interval_s
                    encoded, count = points.encode(self._metrics.collect(), time.clock_gettime_ns(time.CLOCK_BOOTTIME))
                    metrics.request = _Request(envelope.request(encoded), count) if encoded else None
                if metrics.step(now):
                    points.committed()
            if last:
                break
            self._wake.wait(_TICK_S)
        for lane in self._lanes.values():
            lane.sender.close()

    def _senders(self) -> dict[str, Sender]:
        targets = {
            s: t
            for s, t in (
                ("traces", self._config.traces),
                ("metrics", self._config.metrics),
                ("logs", self._config.logs),
            )
            if t
        }
        if self._config.protocol == "grpc":
            from exporters.grpc_link import GrpcLink, GrpcSender

            self._link = GrpcLink(targets)
            return {s: GrpcSender(s, self._link) for s in targets}
        return {s: HttpSender(s, t) for s, t in targets.items()}


def _remedy(error: str, config: OtlpConfig) -> str:
    port, other = ("4317", "http/protobuf") if config.protocol == "grpc" else ("4318", "grpc")
    if "refused" in error.lower() or "UNAVAILABLE" in error:
        return f"is the collector running, with an OTLP receiver for {config.protocol} (usually port {port})?"
    if "401" in error or "403" in error or "UNAUTHENTICATED" in error:
        return "set the credentials in OTEL_EXPORTER_OTLP_HEADERS"
    if "FileNotFoundError" in error or "PermissionError" in error:
        return (
            "certificates and keys (OTEL_EXPORTER_OTLP_CERTIFICATE, ..._CLIENT_KEY) must be files that the agent's user"
            " can read"
        )
    if error.startswith("HTTP 3"):
        return "redirects are not followed: set the endpoint to its Location"
    if "CERTIFICATE" in error.upper() or "SSL" in error:
        return "set OTEL_EXPORTER_OTLP_CERTIFICATE to the collector's CA, or use an http:// endpoint"
    if "404" in error or "not an OTLP response" in error or "BadStatusLine" in error:
        return f"check the endpoint; for OTLP over {other} set OTEL_EXPORTER_OTLP_PROTOCOL={other}"
    if "Timeout" in error or "not answered" in error:
        return "the collector accepts and does not answer: see its log, or restart it"
    return "see the collector's log"
