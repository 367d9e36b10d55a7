"""The OTLP exporter: a sink with a worker thread that encodes and sends, so that the agent's loop never blocks on it.

While the collector is unavailable, rows wait in a bounded queue, one request at a time is retried with growing pauses,
and only the oldest spans are lost. Metrics are only collected after the last ones were sent, so they lose nothing.

Findings that have just opened or closed are log records. A collector that does not accept logs is tried once; the
findings' spans follow in any case.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from agent.batch import Batch, ended
from agent.common.lean import hollow
from agent.common.places import NOWHERE
from agent.contracts import Owning, Stating
from agent.log import ERROR, log_message
from exporters.aggregate import MetricStore
from exporters.lane import DOWN_AFTER, TOO_LARGE, Lane
from exporters.otlp_settings import OtlpSettings
from exporters.send import HttpSender, Sender
from exporters.waiting import BESIDE_TABLES, SPAN_TABLES, Waiting

if TYPE_CHECKING:
    from exporters.grpc_link import GrpcLink
    from exporters.process_resource import PlaceOf

ToWall = Callable[[np.ndarray], np.ndarray]
_TICK_S = 0.2


class OtlpExporter(Stating, Owning):
    """Implements agent.contracts.Sink for spans, and reads ``metrics`` (a sink of its own) at each interval.

    config: see exporters.otlp_settings.read_otlp; at least one target. resource: see exporters.resource.describe;
    ``host.boot.id`` must be in it. to_wall: CLOCK_BOOTTIME ns -> Unix ns, arrays of shape (n,); called on the worker
    thread, late, at encoding. place_of: where a process runs; called on the worker thread, too.
    """

    name = "otlp"

    def __init__(
        self,
        config: OtlpSettings,
        resource: Mapping[str, str],
        to_wall: ToWall,
        metrics: MetricStore,
        place_of: PlaceOf = lambda *_: NOWHERE,
    ) -> None:
        self._config, self._resource, self._to_wall, self._metrics = config, dict(resource), to_wall, metrics
        self._place_of = place_of
        self._backlog = Waiting(config)
        self._lanes: dict[str, Lane] = {}
        self._link: GrpcLink | None = None
        self._failure = ""
        self._stop, self._wake = threading.Event(), threading.Event()
        self._worker = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._worker.start()

    def offer(self, batch: Batch) -> None:
        """Keeps a batch for the worker; tables that do not become spans are ignored."""
        batch = ended(batch)
        wanted = self._config.traces or (self._config.logs if batch.table == "finding" else None)
        if batch.table in SPAN_TABLES | BESIDE_TABLES and wanted is not None and len(batch.rows):
            self._backlog.put(batch, time.monotonic())

    def flush(self, timeout_s: float) -> None:
        """Sends what waits, with or without children, for at most ``timeout_s``. The rest is counted as dropped. Ends
        the worker.
        """
        again = self._stop.is_set()
        self._stop.set()
        self._wake.set()
        self._worker.join(timeout_s)
        if self._worker.is_alive():
            for lane in self._lanes.values():
                lane.sender.abort()
        self._backlog.give_up(0 if again else sum(lane.under_way for lane in self._lanes.values()))

    def close(self) -> None:
        self.flush(2.0)

    def losses(self) -> dict[str, int]:
        """Rows and points that will never reach the collector: ``queue_full``, ``shutdown``, ``rejected``,
        ``too_large``.
        """
        lost = {name: sum(getattr(lane, name) for lane in self._lanes.values()) for name in ("rejected", "too_large")}
        return {**self._backlog.dropped(), **lost}

    def state(self) -> dict[str, object]:
        """endpoint protocol state(ok|retrying|down) sent_spans sent_logs sent_points rejected dropped unsampled
        last_error remedy queued_bytes errors max_request_bytes.

        errors: the last one of each signal, with its remedy. last_error: that of the signal whose requests fail now,
        else the latest. max_request_bytes: by signal, if larger requests were refused. down: three requests of a signal
        in a row failed or were refused, one takes more than twice its timeout, or the exporter stopped. unsampled:
        plain decisions outside the sample, operations that are not slow, and rows beyond max_spans_per_s, which are no
        losses. logs: the collector's
        refusal of logs.
        """
        lanes = self._lanes
        worst = max((lane for lane in lanes.values()), key=lambda lane: lane.failures, default=None)
        failures = worst.failures if worst else 0
        refusals = max((lane.refusals for lane in lanes.values()), default=0)
        target = self._config.traces or self._config.metrics or self._config.logs
        # The timeout does not bound the name look-up, nor all addresses of a host together.
        stuck_s = max((lane.stuck_s() for lane in lanes.values()), default=0.0)
        stuck = (
            f"the collector has not answered whole for {stuck_s:.0f} s"
            if target and stuck_s > 2 * target.timeout_s
            else ""
        )
        state = (
            "down"
            if self._failure or stuck or max(failures, refusals) >= DOWN_AFTER
            else "retrying"
            if failures
            else "ok"
        )
        error = (
            self._failure
            or stuck
            or (worst.last_error if worst and failures else "")
            or max(((lane.error_s, lane.last_error) for lane in lanes.values()), default=(0.0, ""))[1]
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
            "errors": {
                signal: {"last_error": lane.last_error, "remedy": _remedy(lane.last_error, self._config)}
                for signal, lane in lanes.items()
                if lane.last_error
            },
            "max_request_bytes": {signal: lane.max_bytes for signal, lane in lanes.items() if lane.max_bytes},
        }

    def pids(self) -> list[int]:
        """The running gRPC processes (none over HTTP)."""
        return [self._link.pid] if self._link and self._link.pid else []

    def processes(self) -> list[dict[str, Any]]:
        """For ``status``."""
        return [{"pid": pid, "role": "otlp sender"} for pid in self.pids()]

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - the agent goes on without export, and shows the error in its state
            self._failure = f"the exporter stopped: {type(error).__name__}: {error}"
            log_message(
                f"tickscope: otlp: {self._failure}; nothing is exported until the agent is started again", ERROR
            )

    def _work(self) -> None:
        with _compiled_protobuf():
            from exporters.points import PointEncoder
            from exporters.process_resource import ProcessResources
            from exporters.protobuf_pieces import Envelope
            from exporters.records import records
            from exporters.spans import SpanEncoder

        config, envelope = self._config, Envelope(self._resource)
        resources = ProcessResources(self._resource, self._place_of)
        spans = SpanEncoder(self._resource["host.boot.id"], self._to_wall, resources, self._metrics)
        points = PointEncoder(config.temporality, self._to_wall, time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        self._lanes = {
            s: Lane(s, sender, envelope.spans if s == "traces" else envelope.request)
            for s, sender in self._senders().items()
        }
        traces, metrics, logs = (self._lanes.get(signal) for signal in ("traces", "metrics", "logs"))
        due = time.monotonic() + config.interval_s
        while True:
            last = self._stop.is_set()
            now = time.monotonic()
            while True:
                # Also if only logs are exported: it sorts findings into opened and closed.
                if traces is None or traces.request is None:
                    taken = self._backlog.take(spans, now, everything=last)
                    if traces:
                        traces.begin(taken, len(taken))
                if traces is None or not traces.step(now):
                    break
            if logs and logs.request is None:
                encoded = [
                    record
                    for event, rows in zip(("opened", "closed"), self._backlog.changed(), strict=True)
                    for record in records(event, rows, spans, self._to_wall, sampled=traces is not None)
                ]
                if not logs.unwanted:
                    logs.begin(encoded, len(encoded))
            if logs:
                logs.step(now)
            if metrics:
                if metrics.request is None and (last or now >= due):
                    due = now + config.interval_s
                    encoded, count = points.encode(self._metrics.collect(), time.clock_gettime_ns(time.CLOCK_BOOTTIME))
                    metrics.begin(encoded, count)
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


def _compiled_protobuf() -> AbstractContextManager[None]:
    """For the block that imports protobuf first: without its second implementation, in Python (0.8 MB)."""
    from google.protobuf.internal import api_implementation

    if api_implementation.Type() == "python":
        return nullcontext()
    return hollow("google.protobuf.internal.python_message")


def _remedy(error: str, config: OtlpSettings) -> str:
    if error.startswith(TOO_LARGE):
        return (
            "raise the limit: max_recv_msg_size_mib of the Collector's gRPC receiver"
            if config.protocol == "grpc"
            else "raise the limit: max_request_body_size of the Collector's receiver, client_max_body_size of an nginx"
        )
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
