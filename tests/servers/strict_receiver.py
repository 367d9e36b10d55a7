"""An OTLP receiver for tests that believes nothing: real sockets, real protobuf, and every rule of the protocol
checked.

It speaks HTTP and gRPC, keeps what it accepted, notes each violation (and answers 400 or INVALID_ARGUMENT), and can be
told how to answer the next requests.
"""

from __future__ import annotations

import bisect
import gzip
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA, Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

_PATHS: dict[str, Any] = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}
_YEAR_2020_NS = 1_577_836_800 * 10**9


class ViolationError(Exception):
    """The request breaks a rule."""


@dataclass(frozen=True)
class Answer:
    """How to answer one request. hang: not at all, until the receiver is closed.  drop: close the connection in the
    middle.

    body and content_type (none: no header) are HTTP's; without a body the right one is sent.
    """

    status: int = 200
    retry_after: str = ""
    rejected: int = 0
    message: str = ""
    body: bytes | None = None
    content_type: str = "application/x-protobuf"
    hang: bool = False
    drop: bool = False


class StrictReceiver:
    """Listens on 127.0.0.1 (``port`` 0: a free one) until closed.

    max_bytes: of a request as it is sent, None for any; too_large: the answer to a larger one over HTTP.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        grpc: bool = False,
        max_bytes: int | None = None,
        too_large: Answer = Answer(status=413, content_type="text/html"),
    ) -> None:
        self.max_bytes, self.too_large = max_bytes, too_large
        self.spans: list[Span] = []
        self._by_id: dict[tuple[bytes, bytes], Span] = {}
        self.metrics: list[Metric] = []
        self.logs: list[LogRecord] = []
        self.resources: list[dict[str, Any]] = []
        self.violations: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.requests = 0
        self.answers: deque[Answer] = deque()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._last: dict[tuple[str, bytes], tuple[int, int, float]] = {}
        self._server = _GrpcServer(self, port) if grpc else _HttpServer(self, port)
        self.port = self._server.port

    def close(self) -> None:
        self._closing.set()
        self._server.close()

    def __enter__(self) -> StrictReceiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def next_answer(self, headers: dict[str, str]) -> Answer:
        with self._lock:
            self.requests += 1
            self.headers.append({k.lower(): v for k, v in headers.items()})
            answer = self.answers.popleft() if self.answers else Answer()
        if answer.hang:
            self._closing.wait()
        return answer

    def take(self, signal: str, body: bytes) -> None:
        """Checks a request and keeps what is in it. Raises ViolationError."""
        with self._lock:
            try:
                request = _PATHS[signal].FromString(body)
                _no_unknown_fields(request)
                self._check(request)
            except (ViolationError, DecodeError) as error:
                self.violations.append(str(error))
                raise ViolationError(str(error)) from error

    def _check(self, request: Any) -> None:
        checks: dict[type, tuple[str, str, str, Any, list[Any]]] = {
            ExportTraceServiceRequest: ("resource_spans", "scope_spans", "spans", self._check_span, self.spans),
            ExportMetricsServiceRequest: (
                "resource_metrics",
                "scope_metrics",
                "metrics",
                self._check_metric,
                self.metrics,
            ),
            ExportLogsServiceRequest: ("resource_logs", "scope_logs", "log_records", _check_record, self.logs),
        }
        groups_name, scopes_name, items_name, check, kept = checks[type(request)]
        groups = getattr(request, groups_name)
        _require(len(groups) > 0, "an empty request")
        for group in groups:
            resource = attributes(group.resource.attributes)
            _require(bool(resource.get("service.name")), "a resource without service.name")
            self.resources.append(resource)
            for scope in getattr(group, scopes_name):
                _require(bool(scope.scope.name), "a scope without a name")
                for item in getattr(scope, items_name):
                    check(item)
                    kept.append(item)

    def _check_span(self, span: Span) -> None:
        """Also against its parent, where that came before it; evidence of a finding may lie outside."""
        _check_span(span)
        parent = self._by_id.get((span.trace_id, span.parent_span_id))
        if parent is not None and not parent.name.startswith("finding "):
            inside = (
                parent.start_time_unix_nano
                <= span.start_time_unix_nano
                <= span.end_time_unix_nano
                <= parent.end_time_unix_nano
            )
            _require(inside, f"{span.name}: not inside its parent {parent.name}")
        self._by_id[span.trace_id, span.span_id] = span

    def _check_metric(self, metric: Metric) -> None:
        name = metric.name
        _require(bool(name) and len(name) <= 255 and name[0].isalpha(), f"metric name {name!r}")
        _require(bool(metric.unit and metric.description), f"{name}: no unit or description")
        kind = str(metric.WhichOneof("data"))
        _require(kind in ("gauge", "sum", "histogram"), f"{name}: data is {kind}")
        data = getattr(metric, kind)
        _require(len(data.data_points) > 0, f"{name}: no points")
        keys = [b"".join(sorted(kv.SerializeToString() for kv in p.attributes)) for p in data.data_points]
        _require(len(set(keys)) == len(keys), f"{name}: a series occurs twice")
        for key, point in zip(keys, data.data_points, strict=True):
            attributes(point.attributes)
            _require(point.time_unix_nano > _YEAR_2020_NS, f"{name}: time {point.time_unix_nano}")
            if kind == "histogram":
                _check_buckets(name, point)
            else:
                _require(point.WhichOneof("value") in ("as_int", "as_double"), f"{name}: no value")
            if kind != "gauge":
                self._check_interval(name, key, data, point)

    def _check_interval(self, name: str, key: bytes, data: Any, point: Any) -> None:
        start, end = point.start_time_unix_nano, point.time_unix_nano
        value = float(point.count if hasattr(point, "count") else point.as_int or point.as_double)
        _require(_YEAR_2020_NS < start <= end, f"{name}: interval {start}..{end}")
        _require(data.aggregation_temporality != 0, f"{name}: no temporality")
        before = self._last.get((name, key))
        if data.aggregation_temporality == AGGREGATION_TEMPORALITY_DELTA:
            _require(start < end, f"{name}: an empty delta interval")
            _require(before is None or start >= before[1], f"{name}: delta intervals overlap")
            _require(value >= 0, f"{name}: a negative delta")
        elif before:
            _require(start == before[0], f"{name}: the start of a cumulative series moved")
            _require(end > before[1] and value >= before[2], f"{name}: a cumulative series went back")
        self._last[name, key] = (start, end, value)


def attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    """Attributes as a dict. Raises ViolationError for an empty or repeated key or a value without a type."""
    out: dict[str, Any] = {}
    for pair in pairs:
        _require(bool(pair.key) and pair.key not in out, f"attribute key {pair.key!r} is empty or repeated")
        kind = pair.value.WhichOneof("value")
        _require(
            kind in ("string_value", "bool_value", "int_value", "double_value"),
            f"attribute {pair.key}: value is {kind}",
        )
        out[pair.key] = getattr(pair.value, str(kind))
    return out


def _check_span(span: Span) -> None:
    _require(len(span.trace_id) == 16 and any(span.trace_id), f"{span.name}: trace id {span.trace_id.hex()!r}")
    _require(len(span.span_id) == 8 and any(span.span_id), f"{span.name}: span id {span.span_id.hex()!r}")
    _require(
        len(span.parent_span_id) in (0, 8) and span.parent_span_id != span.span_id,
        f"{span.name}: parent {span.parent_span_id.hex()!r}",
    )
    _require(bool(span.name) and span.kind != Span.SPAN_KIND_UNSPECIFIED, "a span without a name or kind")
    _require(
        _YEAR_2020_NS < span.start_time_unix_nano <= span.end_time_unix_nano,
        f"{span.name}: {span.start_time_unix_nano}..{span.end_time_unix_nano}",
    )
    attributes(span.attributes)
    for event in span.events:
        _require(
            bool(event.name) and event.time_unix_nano > _YEAR_2020_NS, f"{span.name}: an event without name or time"
        )
        attributes(event.attributes)
    for link in span.links:
        _require(len(link.trace_id) == 16 and len(link.span_id) == 8, f"{span.name}: a broken link")


def _check_buckets(name: str, point: Any) -> None:
    counts, bounds = list(point.bucket_counts), list(point.explicit_bounds)
    _require(len(counts) == len(bounds) + 1, f"{name}: {len(counts)} buckets of {len(bounds)} bounds")
    _require(bounds == sorted(set(bounds)), f"{name}: bounds do not rise")
    _require(sum(counts) == point.count, f"{name}: {sum(counts)} in buckets, count {point.count}")
    for one in point.exemplars:
        _require(len(one.trace_id) == 16 and len(one.span_id) == 8, f"{name}: an exemplar without a span")
        _require(one.time_unix_nano > _YEAR_2020_NS, f"{name}: an exemplar at {one.time_unix_nano}")
        _require(counts[bisect.bisect_left(bounds, one.as_double)] > 0, f"{name}: an exemplar in an empty bucket")
    if point.HasField("min") and point.HasField("max"):
        _require(point.min <= point.max, f"{name}: min above max")


def _check_record(record: LogRecord) -> None:
    _require(
        record.time_unix_nano > _YEAR_2020_NS and record.observed_time_unix_nano > _YEAR_2020_NS,
        "a record without a time",
    )
    _require(bool(record.event_name), "a record without a name is no event")
    _require(record.flags in (0, 1) and (not record.flags or bool(record.span_id)), f"flags {record.flags}")
    _require(0 < record.severity_number < 25 and bool(record.severity_text), "a record without a severity")
    _require(
        bool(record.body.string_value) and "boot+" not in record.body.string_value, f"body {record.body.string_value!r}"
    )
    _require(len(record.trace_id) in (0, 16) and len(record.span_id) in (0, 8), "a record with broken ids")
    attributes(record.attributes)


def _no_unknown_fields(message: Message) -> None:
    _require(len(UnknownFieldSet(message)) == 0, f"unknown fields in {message.DESCRIPTOR.name}")
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            for child in [value] if isinstance(value, Message) else value:
                _no_unknown_fields(child)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ViolationError(otherwise)


def _response(signal: str, answer: Answer) -> bytes:
    if signal == "/v1/traces":
        traces = ExportTraceServiceResponse()
        if answer.rejected or answer.message:
            traces.partial_success.rejected_spans, traces.partial_success.error_message = (
                answer.rejected,
                answer.message,
            )
        return bytes(traces.SerializeToString())
    if signal == "/v1/logs":
        return bytes(ExportLogsServiceResponse().SerializeToString())
    metrics = ExportMetricsServiceResponse()
    if answer.rejected or answer.message:
        metrics.partial_success.rejected_data_points, metrics.partial_success.error_message = (
            answer.rejected,
            answer.message,
        )
    return bytes(metrics.SerializeToString())


class _HttpServer:
    def __init__(self, receiver: StrictReceiver, port: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(length := int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                answer = receiver.next_answer(dict(self.headers))
                if receiver.max_bytes is not None and length > receiver.max_bytes:
                    answer = receiver.too_large
                if answer.hang or answer.drop:
                    self.close_connection = True
                    return
                status, out = answer.status, answer.body
                if status == 200:
                    try:
                        receiver.take(self.path, body)
                        out = _response(self.path, answer) if out is None else out
                    except (ViolationError, KeyError):
                        status = 400
                self.send_response(status)
                if answer.retry_after:
                    self.send_header("retry-after", answer.retry_after)
                if answer.content_type:
                    self.send_header("content-type", answer.content_type)
                self.send_header("content-length", str(len(out or b"")))
                self.end_headers()
                self.wfile.write(out or b"")

            def log_message(self, *_: object) -> None:
                """The tests read what happened from the receiver itself."""

        class Server(ThreadingHTTPServer):
            allow_reuse_address = True
            daemon_threads = True

        self._server = Server(("127.0.0.1", port), Handler)
        self.port: int = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _GrpcServer:
    def __init__(self, receiver: StrictReceiver, port: int) -> None:
        import grpc

        def handler(path: str) -> grpc.RpcMethodHandler:
            def export(body: bytes, context: grpc.ServicerContext) -> bytes:
                answer = receiver.next_answer(dict(context.invocation_metadata()))
                if answer.status != 200:
                    code = {503: grpc.StatusCode.UNAVAILABLE, 400: grpc.StatusCode.INVALID_ARGUMENT}[answer.status]
                    context.abort(code, answer.message or "told to")
                try:
                    receiver.take(path, body)
                except ViolationError as error:
                    context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
                return _response(path, answer)

            return grpc.unary_unary_rpc_method_handler(export)

        package = "opentelemetry.proto.collector"
        options = [] if receiver.max_bytes is None else [("grpc.max_receive_message_length", receiver.max_bytes)]
        self._server = grpc.server(ThreadPoolExecutor(4), options=options)
        self._server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(
                    f"{package}.trace.v1.TraceService", {"Export": handler("/v1/traces")}
                ),
                grpc.method_handlers_generic_handler(
                    f"{package}.metrics.v1.MetricsService", {"Export": handler("/v1/metrics")}
                ),
                grpc.method_handlers_generic_handler(f"{package}.logs.v1.LogsService", {"Export": handler("/v1/logs")}),
            ]
        )
        self.port: int = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()

    def close(self) -> None:
        self._server.stop(None).wait()
