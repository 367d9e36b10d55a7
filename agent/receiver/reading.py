"""OTLP export requests, protobuf or JSON, as records that may be decisions. Pure, and lazy: what a caller does not ask
for is not read.

https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding: in JSON ids are hexadecimal, and 64-bit numbers may be
texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from agent.limiters.decision import Malformed
from agent.receiver.mapping import MEANING, Record, Value

_REQUESTS: dict[str, Any] = {"traces": ExportTraceServiceRequest, "logs": ExportLogsServiceRequest}
_LEVELS = {
    "traces": ("resource_spans", "scope_spans", "spans"),
    "logs": ("resource_logs", "scope_logs", "log_records"),
}
#: Kinds of span that a whole request happens in: Span.SpanKind.SERVER to CONSUMER.
_REQUEST_KINDS = frozenset({2, 3, 4, 5})
_KINDS = [f"SPAN_KIND_{name}" for name in ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")]
_RESOURCE = frozenset({"service.name", "host.boot.id"})
_MAX_TIME_NS = 1 << 63
#: Attributes of one thing that are read.
_MAX_ATTRIBUTES = 256
_INTEGER = re.compile(r"-?\d{1,20}", re.ASCII)
_SCALARS = {"string_value", "int_value", "double_value", "bool_value"}
_JSON_SCALARS = {"stringValue": (str,), "intValue": (int,), "doubleValue": (float, int), "boolValue": (bool,)}


def records(signal: str, data: bytes, as_json: bool) -> Iterator[Record | None]:
    """The spans and their events, or the logs of a request; None for one without a limiter's attributes. signal: traces
    or logs. Raises Malformed at the first for what is no such request.
    """
    try:
        if as_json and not isinstance(found := json.loads(data), dict):
            raise Malformed("not a JSON object")
        request = _JsonMessage(found) if as_json else _REQUESTS[signal].FromString(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise Malformed(f"not a request with {signal}: {str(error)[:80]}") from error
    resources, scopes, items = _LEVELS[signal]
    for resource in getattr(request, resources):
        about = _attributes(resource.resource, _RESOURCE)
        service, boot_id = str(about.get("service.name", "")), str(about.get("host.boot.id", ""))
        for scope in getattr(resource, scopes):
            common = (scope.scope.name, scope.scope.version), service, boot_id
            for item in getattr(scope, items):
                yield from _spans(item, common) if signal == "traces" else _logs(item, common)


def _spans(span: Any, common: tuple[Any, ...]) -> Iterator[Record | None]:
    attributes, events = _attributes(span), span.events
    ids = _ids(span) if attributes or events else (b"", b"")
    start, end = span.start_time_unix_nano, span.end_time_unix_nano
    # A request that was limited takes longer than the decision, which comes at its beginning.
    if span.kind in _REQUEST_KINDS or not start <= end < _MAX_TIME_NS:
        when = start or end, -1
    else:
        when = end, end - start if start else -1
    yield Record("span", attributes, *when, *ids, span.name, *common) if attributes else None
    for event in events:
        more = _attributes(event)
        yield Record("event", more, event.time_unix_nano, -1, *ids, event.name, *common) if more else None


def _logs(log: Any, common: tuple[Any, ...]) -> Iterator[Record | None]:
    at_ns = log.time_unix_nano or log.observed_time_unix_nano
    attributes = _attributes(log)
    yield Record("log", attributes, at_ns, -1, *_ids(log), "", *common) if attributes else None


def _attributes(holder: Any, wanted: Iterable[str] = MEANING) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for one in islice(holder.attributes, _MAX_ATTRIBUTES):
        if isinstance(one, dict):
            if isinstance(key := one.get("key"), str) and key in wanted:
                value = one.get("value")
                kind, given = next(iter(value.items()), ("", None)) if isinstance(value, dict) else ("", None)
                given = _integer(given) if kind == "intValue" else given
                if type(given) in _JSON_SCALARS.get(kind, ()):
                    found.setdefault(key, given)  # type: ignore[arg-type]
        elif one.key in wanted and (kind := one.value.WhichOneof("value")) in _SCALARS:
            found.setdefault(one.key, getattr(one.value, kind))
    return found


def _ids(holder: Any) -> tuple[bytes, bytes]:
    """Both as hexadecimal digits; without a trace there is no span."""
    trace, span = (
        raw.hex().encode() if len(raw) == size and any(raw) else b""
        for raw, size in ((holder.trace_id, 16), (holder.span_id, 8))
    )
    return (trace, span) if trace else (b"", b"")


class _JsonMessage:
    """A JSON object, read as the protobuf message that it stands for: a field that is missing or has another type has
    its default.
    """

    def __init__(self, found: object) -> None:
        self._found = found if isinstance(found, dict) else {}

    def __getattr__(self, name: str) -> Any:
        key, read = _JSON_FIELDS[name]
        return read(self._found.get(key))


def _text(found: object) -> str:
    return found if isinstance(found, str) else ""


def _integer(found: Any) -> Any:
    return int(found) if isinstance(found, str) and _INTEGER.fullmatch(found) else found


def _number(found: object) -> int:
    number = _integer(found)
    return number if isinstance(number, int) and 0 <= number < 1 << 64 else 0


def _id(found: object) -> bytes:
    try:
        return bytes.fromhex(found) if isinstance(found, str) and len(found) in (16, 32) else b""
    except ValueError:
        return b""


_READERS: dict[Callable[[Any], Any], str] = {
    lambda found: map(_JsonMessage, found) if isinstance(found, list) else (): (
        "resource_spans scope_spans spans events resource_logs scope_logs log_records"
    ),
    lambda found: [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []: "attributes",
    _JsonMessage: "resource scope",
    _text: "name version",
    _number: "start_time_unix_nano end_time_unix_nano time_unix_nano observed_time_unix_nano",
    _id: "trace_id span_id",
    lambda found: _KINDS.index(found) if found in _KINDS else _number(found): "kind",
}
_JSON_FIELDS = {
    name: (re.sub("_(.)", lambda match: match[1].upper(), name), read)
    for read, names in _READERS.items()
    for name in names.split()
}
