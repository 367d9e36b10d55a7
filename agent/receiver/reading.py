"""Requests of OTLP, protobuf or JSON, as records that may be decisions. Pure, and lazy: what a caller does not ask for
is not read.

https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding: ids are hexadecimal in JSON, and 64-bit numbers may be
texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Literal

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from agent.limiters.decision import Malformed
from agent.receiver.mapping import MEANING, Record, Value

REQUESTS: dict[str, Any] = {"traces": ExportTraceServiceRequest, "logs": ExportLogsServiceRequest}
#: A span that the rest of a request happens in: Span.SpanKind.SERVER to CONSUMER.
_AROUND = frozenset({2, 3, 4, 5})
_KINDS = {
    f"SPAN_KIND_{name}": at
    for at, name in enumerate(["UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"])
}
_RESOURCE = frozenset({"service.name", "host.boot.id"})
_MOST_TIME = 1 << 63
#: Attributes of one thing that are looked at.
_MOST_ATTRIBUTES = 256
#: What is read of a request: a record, None for a span, event or log that has nothing of a limiter, False for what only
#: holds others.
Read = Record | Literal[False] | None
_HEX = {16: re.compile(r"[0-9a-fA-F]{32}"), 8: re.compile(r"[0-9a-fA-F]{16}")}


def records(signal: str, data: bytes, as_json: bool) -> Iterator[Read]:
    """What a request holds, in its order. Raises Malformed at the first for what is no such request."""
    if as_json:
        try:
            request = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Malformed(f"no JSON: {str(error)[:80]}") from error
        return _json_spans(request) if signal == "traces" else _json_logs(request)
    try:
        request = REQUESTS[signal].FromString(data)
    except (DecodeError, ValueError) as error:
        raise Malformed("no protobuf message of this signal") from error
    return _spans(request) if signal == "traces" else _logs(request)


def _of(attributes: Iterable[Any], wanted: Any = MEANING) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for one in islice(attributes, _MOST_ATTRIBUTES):
        if one.key in wanted and (kind := one.value.WhichOneof("value")) in (
            "string_value",
            "int_value",
            "double_value",
            "bool_value",
        ):
            found.setdefault(one.key, getattr(one.value, kind))
    return found


def _id(raw: bytes, size: int) -> bytes:
    return raw.hex().encode() if len(raw) == size and any(raw) else b""


def _ids(trace: bytes, span: bytes) -> tuple[bytes, bytes]:
    """Both as hexadecimal digits; of no trace there is no span."""
    trace_id = _id(trace, 16)
    return (trace_id, _id(span, 8)) if trace_id else (b"", b"")


def _spans(request: Any) -> Iterator[Read]:
    for resource in request.resource_spans:
        yield False
        who = _of(resource.resource.attributes, _RESOURCE)
        of_all = str(who.get("service.name", "")), str(who.get("host.boot.id", ""))
        for scope in resource.scope_spans:
            yield False
            by = scope.scope.name, scope.scope.version
            for span in scope.spans:
                start, end = span.start_time_unix_nano, span.end_time_unix_nano
                attributes = _of(span.attributes)
                ids = _ids(span.trace_id, span.span_id) if attributes or span.events else (b"", b"")
                yield _span(attributes, span.kind, start, end, ids, span.name, by, of_all)
                for event in span.events:
                    more = _of(event.attributes)
                    yield (
                        Record("event", more, event.time_unix_nano, -1, *ids, event.name, by, *of_all) if more else None
                    )


def _span(
    attributes: dict[str, Value],
    kind: int,
    start: int,
    end: int,
    ids: tuple[bytes, bytes],
    name: str,
    by: tuple[str, str],
    of_all: tuple[str, str],
) -> Record | None:
    """A request that was limited takes longer than the decision, which comes at its beginning."""
    if not attributes:
        return None
    if kind in _AROUND or not start <= end < _MOST_TIME:
        return Record("span", attributes, start or end, -1, *ids, name, by, *of_all)
    return Record("span", attributes, end, end - start if start else -1, *ids, name, by, *of_all)


def _logs(request: Any) -> Iterator[Read]:
    for resource in request.resource_logs:
        yield False
        who = _of(resource.resource.attributes, _RESOURCE)
        of_all = str(who.get("service.name", "")), str(who.get("host.boot.id", ""))
        for scope in resource.scope_logs:
            yield False
            by = scope.scope.name, scope.scope.version
            for log in scope.log_records:
                if not (attributes := _of(log.attributes)):
                    yield None
                    continue
                at = log.time_unix_nano or log.observed_time_unix_nano
                yield Record("log", attributes, at, -1, *_ids(log.trace_id, log.span_id), "", by, *of_all)


# JSON: what is missing or of another type reads as not there.


def _list(holder: Any, name: str) -> list[Any]:
    found = holder.get(name) if isinstance(holder, dict) else None
    return found if isinstance(found, list) else []


def _text(holder: Any, name: str) -> str:
    found = holder.get(name) if isinstance(holder, dict) else None
    return found if isinstance(found, str) else ""


def _number(holder: Any, name: str) -> int:
    found = holder.get(name) if isinstance(holder, dict) else None
    if isinstance(found, str) and found.isascii() and found.isdigit() and len(found) < 20:
        return int(found)
    return found if type(found) is int and 0 <= found < 1 << 64 else 0


def _json_of(holder: Any, wanted: Any = MEANING) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for one in islice(_list(holder, "attributes"), _MOST_ATTRIBUTES):
        if isinstance(one, dict) and isinstance(key := one.get("key"), str) and key in wanted:
            value = one.get("value")
            kind, what = next(iter(value.items()), ("", None)) if isinstance(value, dict) else ("", None)
            if kind == "intValue" and isinstance(what, str) and re.fullmatch(r"-?\d{1,19}", what, re.ASCII):
                what = int(what)
            if (kind, type(what)) in _JSON_VALUES:
                found.setdefault(key, what)  # type: ignore[arg-type]
    return found


_JSON_VALUES = {
    ("stringValue", str),
    ("intValue", int),
    ("doubleValue", float),
    ("doubleValue", int),
    ("boolValue", bool),
}


def _json_ids(holder: Any) -> tuple[bytes, bytes]:
    found = [
        bytes.fromhex(text) if _HEX[size].fullmatch(text := _text(holder, name)) else b""
        for name, size in (("traceId", 16), ("spanId", 8))
    ]
    return _ids(found[0], found[1])


def _json_spans(request: Any) -> Iterator[Read]:
    for resource in _list(_object(request), "resourceSpans"):
        yield False
        of_all = _json_resource(resource)
        for scope in _list(resource, "scopeSpans"):
            yield False
            by = _json_scope(scope)
            for span in _list(scope, "spans"):
                attributes, events = _json_of(span), _list(span, "events")
                ids = _json_ids(span) if attributes or events else (b"", b"")
                kind = span.get("kind") if isinstance(span, dict) else 0
                kind = _KINDS.get(kind, 0) if isinstance(kind, str) else kind if type(kind) is int else 0
                start, end = _number(span, "startTimeUnixNano"), _number(span, "endTimeUnixNano")
                yield _span(attributes, kind, start, end, ids, _text(span, "name"), by, of_all)
                for event in events:
                    more = _json_of(event)
                    yield (
                        Record(
                            "event", more, _number(event, "timeUnixNano"), -1, *ids, _text(event, "name"), by, *of_all
                        )
                        if more
                        else None
                    )


def _json_logs(request: Any) -> Iterator[Read]:
    for resource in _list(_object(request), "resourceLogs"):
        yield False
        of_all = _json_resource(resource)
        for scope in _list(resource, "scopeLogs"):
            yield False
            by = _json_scope(scope)
            for log in _list(scope, "logRecords"):
                attributes = _json_of(log)
                at = _number(log, "timeUnixNano") or _number(log, "observedTimeUnixNano")
                yield Record("log", attributes, at, -1, *_json_ids(log), "", by, *of_all) if attributes else None


def _object(request: Any) -> dict[str, Any]:
    if not isinstance(request, dict):
        raise Malformed("no JSON object")
    return request


def _json_resource(holder: Any) -> tuple[str, str]:
    who = _json_of(holder.get("resource") if isinstance(holder, dict) else None, _RESOURCE)
    return str(who.get("service.name", "")), str(who.get("host.boot.id", ""))


def _json_scope(holder: Any) -> tuple[str, str]:
    scope = holder.get("scope") if isinstance(holder, dict) else None
    return _text(scope, "name"), _text(scope, "version")
