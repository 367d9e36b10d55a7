"""Sending a serialised request over HTTP, with the installed OTLP exporter's own client.

Of opentelemetry-exporter-otlp 1.45 only the client (compression, retries within a timeout) and its urllib3 transport are
imported: without its SDK and without requests that is 8 MB less. The names are private to that package, hence setup.py pins
its minor version and tests/unit/test_otlp_client.py holds it to what is used here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from exporters.config import Target

if TYPE_CHECKING:
    from google.protobuf.message import Message

PROTOBUF = "application/x-protobuf"
#: Types under which a body is taken for protobuf: its own, its registered one, none, and what is said where nobody cared.
_BINARY = frozenset({PROTOBUF, "application/protobuf", "application/octet-stream", ""})
_RETRYABLE = frozenset({429, 502, 503, 504})
_log = logging.getLogger("tickscope.otlp")
_log.addHandler(logging.NullHandler())
_log.propagate = False


class Outcome(NamedTuple):
    """What became of a request.

    status: ``sent`` (accepted, but for ``rejected`` of its items), ``retry`` (try the same again) or ``refused`` (never will be).
    retry_after_s: the least time to wait that the collector asked for.
    """

    status: str
    rejected: int = 0
    message: str = ""
    retry_after_s: float = 0.0


class Sender(Protocol):
    def send(self, data: bytes) -> Outcome: ...

    def hurry(self) -> None:
        """Called from another thread: from now on each request is tried once."""
        ...

    def abort(self) -> None:
        """Called from another thread: give up the request under way, where that is possible."""
        ...

    def close(self) -> None: ...


class HttpSender:
    """Sends one signal's requests; ``signal`` is ``traces``, ``metrics`` or ``logs``. Blocks for up to ``target.timeout_s``."""

    def __init__(self, signal: str, target: Target) -> None:
        from opentelemetry.exporter.otlp.common.http import Compression, _extract_retry_after, _OTLPHTTPClient

        from exporters.transport import BoundedTransport

        kinds: dict[str, Literal["spans", "logs", "metrics"]] = {"traces": "spans", "logs": "logs", "metrics": "metrics"}
        kind = kinds[signal]
        cert = (target.client_certificate, target.client_key) if target.client_certificate else None
        self._transport = BoundedTransport(verify=target.certificate or True, cert=cert)
        self._signal, self._retry_after = signal, _extract_retry_after
        self._client = _OTLPHTTPClient(
            transport=self._transport, endpoint=target.endpoint, kind=kind, timeout=target.timeout_s,
            compression=Compression.from_str(target.compression), logger=_log,
            headers={"content-type": PROTOBUF, "user-agent": "tickscope", **dict(target.headers)},
        )

    def send(self, data: bytes) -> Outcome:
        self._transport.last = None
        result = self._client.export(data)
        last = self._transport.last
        if result.status_code is None or last is None:
            return Outcome("retry", message=_reason(result.error) if result.error else "no answer")
        if 200 <= result.status_code < 300:
            return accepted(self._signal, last.content(), last.headers().get("content-type", ""))
        message = f"HTTP {result.status_code} {result.reason or ''}".strip()
        if result.status_code in _RETRYABLE:
            return Outcome("retry", message=message, retry_after_s=self._retry_after(last) or 0.0)
        return Outcome("refused", message=message)

    def hurry(self) -> None:
        self._client._shutdown_event.set()

    def abort(self) -> None:
        self._transport.abort()

    def close(self) -> None:
        self._client.shutdown()


def accepted(signal: str, body: bytes, content_type: str = PROTOBUF) -> Outcome:
    """Reads the answer to an accepted request: ExportTraceServiceResponse or the like, serialised.

    ``refused`` where it is something else, as from a web server that answers everybody: nothing says that somebody kept the items.
    Empty is a success under any type, as Prometheus answers; JSON is read too, which some servers answer in spite of the specification.
    """
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    kind = content_type.partition(";")[0].strip().lower()
    kinds: dict[str, tuple[Callable[[], Any], str]] = {
        "traces": (ExportTraceServiceResponse, "rejected_spans"), "metrics": (ExportMetricsServiceResponse, "rejected_data_points"),
        "logs": (ExportLogsServiceResponse, "rejected_log_records")}
    answer = kinds[signal][0]()
    try:
        if kind == "application/json" and body:
            _read_json(body, answer)
        elif kind in _BINARY:
            answer.ParseFromString(body)
        elif body:
            raise DecodeError(kind)
    except DecodeError:
        return Outcome("refused", message=f"the answer ({kind[:50] or 'without a type'}) is not an OTLP response: is this a collector?")
    partial = answer.partial_success
    return Outcome("sent", getattr(partial, kinds[signal][1]), partial.error_message[:200])


def _read_json(body: bytes, answer: Message) -> None:
    """Raises DecodeError where it is not a JSON object, or its known fields have other types."""
    from google.protobuf.json_format import ParseDict, ParseError
    from google.protobuf.message import DecodeError

    if not body.lstrip().startswith(b"{"):
        raise DecodeError
    try:
        ParseDict(json.loads(body), answer, ignore_unknown_fields=True)
    except (ParseError, RecursionError, ValueError) as error:
        raise DecodeError from error


def _reason(error: BaseException) -> str:
    """The innermost cause: urllib3 wraps it up to three times."""
    while (inner := getattr(error, "reason", None) or error.__cause__ or error.__context__) and isinstance(inner, BaseException):
        error = inner
    return f"{type(error).__name__}: {error}"[:200]
