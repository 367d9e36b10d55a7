"""Sends a serialised request over HTTP, and reads its outcome.

Uses opentelemetry-proto: its messages here, its stubs over gRPC (exporters.grpc_sender). The HTTP transport of
opentelemetry-exporter-otlp is not used: it hides what a collector rejected (partial_success) and when to retry
(Retry-After), and needs the SDK.
"""

from __future__ import annotations

import gzip
import json
import math
import time
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from exporters.otlp_settings import Endpoint

if TYPE_CHECKING:
    from google.protobuf.message import Message

PROTOBUF = "application/x-protobuf"
#: Content types of a body that is parsed as protobuf: the usual one, the registered one, none, and generic ones.
_BINARY = frozenset({PROTOBUF, "application/protobuf", "application/octet-stream", ""})
_RETRYABLE = frozenset({429, 502, 503, 504})


STATUSES = ("sent", "retry", "refused", "too_large")


class Outcome(NamedTuple):
    """The outcome of a request.

    status: ``sent`` (accepted, except ``rejected`` of its items), ``retry`` (try the same again), ``too_large`` (send
    less at once) or ``refused`` (will never be accepted). retry_after_s: the least wait that the collector requested.
    """

    status: str
    rejected: int = 0
    message: str = ""
    retry_after_s: float = 0.0


class Sender(Protocol):
    def send(self, data: bytes) -> Outcome: ...

    def abort(self) -> None:
        """Gives up the request under way, if possible; called from another thread."""
        ...

    def close(self) -> None: ...


class HttpSender:
    """Sends one signal's requests; ``signal`` is ``traces``, ``metrics`` or ``logs``. One attempt each; blocks for up
    to ``target.timeout_s``.
    """

    def __init__(self, signal: str, target: Endpoint) -> None:
        from exporters.transport import Transport

        self._signal, self._timeout_s, self._gzip = signal, target.timeout_s, target.compression == "gzip"
        self._transport = Transport(
            target.endpoint,
            certificate=target.certificate,
            client_certificate=target.client_certificate,
            client_key=target.client_key,
        )
        self._headers = {
            "content-type": PROTOBUF,
            "user-agent": "tickscope",
            **({"content-encoding": "gzip"} if self._gzip else {}),
            **dict(target.headers),
        }

    def send(self, data: bytes) -> Outcome:
        from http.client import HTTPException

        try:
            answer = self._transport.post(gzip.compress(data) if self._gzip else data, self._headers, self._timeout_s)
        except (OSError, HTTPException, ValueError) as error:
            return failed(error)
        if 200 <= answer.status < 300:
            return accepted(self._signal, answer.body, answer.headers.get("content-type", ""))
        message = f"HTTP {answer.status} {answer.reason}".strip()
        if answer.status in _RETRYABLE:
            return Outcome("retry", message=message, retry_after_s=retry_after(answer.headers.get("retry-after", "")))
        if 300 <= answer.status < 400 and (location := answer.headers.get("location", "")):
            message += f", Location: {location[:100]}"
        # The Collector (confighttp's max_request_body_size) answers 400 with the text of Go's http.MaxBytesReader.
        too_large = answer.status == 413 or (answer.status == 400 and b"request body too large" in answer.body)
        return Outcome("too_large" if too_large else "refused", message=message[:200])

    def abort(self) -> None:
        self._transport.abort()

    def close(self) -> None:
        self._transport.close()


def failed(error: Exception) -> Outcome:
    """The outcome of an error that will be retried. The text of a ValueError is left out: it may contain a header's
    secret value.
    """
    secret = isinstance(error, ValueError) and not isinstance(error, OSError)  # a certificate's error is both
    return Outcome("retry", message=(type(error).__name__ + ("" if secret else f": {error}"))[:200])


def retry_after(value: str) -> float:
    """Seconds from now in a Retry-After header: a number or a date (RFC 9110). 0 if missing or invalid."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            at = parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return 0.0
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - time.time()
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0


def accepted(signal: str, body: bytes, content_type: str = PROTOBUF) -> Outcome:
    """Reads the answer to an accepted request: ExportTraceServiceResponse or the like, serialised.

    ``refused`` for another content, as from a web server that answers anything: then nobody may have stored the items.
    Empty is a success under any type, as Prometheus answers. JSON is read too, since some servers answer so despite the
    specification.
    """
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    kind = content_type.partition(";")[0].strip().lower()
    kinds: dict[str, tuple[Callable[[], Any], str]] = {
        "traces": (ExportTraceServiceResponse, "rejected_spans"),
        "metrics": (ExportMetricsServiceResponse, "rejected_data_points"),
        "logs": (ExportLogsServiceResponse, "rejected_log_records"),
    }
    answer = kinds[signal][0]()
    try:
        if kind == "application/json" and body:
            _read_json(body, answer)
        elif kind in _BINARY:
            answer.ParseFromString(body)
        elif body:
            raise DecodeError(kind)
    except DecodeError:
        return Outcome(
            "refused",
            message=f"the answer ({kind[:50] or 'without a type'}) is not an OTLP response: is this a collector?",
        )
    partial = answer.partial_success
    return Outcome("sent", getattr(partial, kinds[signal][1]), partial.error_message[:200])


def _read_json(body: bytes, answer: Message) -> None:
    """Raises DecodeError if it is not a JSON object, or its known fields have other types."""
    from google.protobuf.json_format import ParseDict, ParseError
    from google.protobuf.message import DecodeError

    if not body.lstrip().startswith(b"{"):
        raise DecodeError
    try:
        ParseDict(json.loads(body), answer, ignore_unknown_fields=True)
    except (ParseError, RecursionError, ValueError) as error:
        raise DecodeError from error
