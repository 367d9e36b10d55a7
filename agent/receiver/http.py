"""OTLP/HTTP: https://opentelemetry.io/docs/specs/otlp/#otlphttp."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from agent.receiver.http_request import MOST_HEAD_BYTES, BadRequest, RequestHead, read_body, read_head
from agent.receiver.senders import OtlpSender
from agent.receiver.taking import MOST_BYTES, PATIENCE_S, Desk, RequestRefused, Taken
from exporters.page_request import known_host

_PATHS = {"/v1/traces": "traces", "/v1/logs": "logs", "/v1/metrics": "metrics"}
_PROTOBUF, _JSON = "application/x-protobuf", "application/json"
_STATUS = {
    "malformed": "400 Bad Request",
    "too_large": "413 Content Too Large",
    "slow": "408 Request Timeout",
    "busy": "429 Too Many Requests",
}
#: Codes of google.rpc.
_CODES = {"malformed": 3, "too_large": 8, "slow": 4, "busy": 14}
#: Of a connection between requests; before its first.
_IDLE_S = 75.0


class HttpServer:
    """``serve`` is what a connection's task does."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def serve(self, sender: OtlpSender) -> None:
        reader, writer = await asyncio.open_connection(sock=sender.sock, limit=MOST_HEAD_BYTES)
        try:
            patience_s = PATIENCE_S
            while await self._one(sender, reader, writer, patience_s):
                patience_s = _IDLE_S
        finally:
            writer.transport.abort()

    async def _one(
        self, sender: OtlpSender, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, patience_s: float
    ) -> bool:
        """A request and its answer; False at the end of the connection."""
        counts = self._desk.counts
        as_json = False
        try:
            head = await asyncio.wait_for(read_head(reader), patience_s)
            if head is None:
                return False
            signal, as_json = _wanted(head)
            packed = _packed(head)
            with self._desk.under_way(sender):
                if head.headers.get("expect", "").lower() == "100-continue":
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                try:
                    body = await asyncio.wait_for(read_body(reader, head, MOST_BYTES), PATIENCE_S)
                except TimeoutError:
                    raise RequestRefused("slow", f"a request has to be there within {PATIENCE_S:g} s") from None
                taken = await self._desk.take(sender, signal, body, as_json=as_json, packed=packed)
        except TimeoutError:  # it never began
            return False
        except BadRequest as error:
            counts["too_large" if error.status[0:3] in ("413", "431") else "malformed"] += 1
            await _answer(writer, error.status, _failure(3, error.why, as_json), as_json, keep=False)
            return False
        except RequestRefused as error:
            counts[error.kind] += 1
            failure = _failure(_CODES[error.kind], error.message, as_json)
            await _answer(writer, _STATUS[error.kind], failure, as_json, keep=False)
            return False
        await _answer(writer, "200 OK", _success(signal, taken, as_json), as_json, keep=head.keeps)
        return head.keeps


def _wanted(head: RequestHead) -> tuple[str, bool]:
    """The signal, and whether it is JSON. A web site can make a browser send what a form could, to any address; and
    with a name of its own that it turns into ours, anything. Raises BadRequest.
    """
    if not known_host(head.headers.get("host", "localhost"), ()):
        raise BadRequest("421 Misdirected Request", "ask by an address of loopback, or as localhost")
    signal = _PATHS.get(head.path)
    if signal is None:
        raise BadRequest("404 Not Found", f"there are {', '.join(_PATHS)}")
    if head.method != "POST":
        raise BadRequest("405 Method Not Allowed", "OTLP is sent by POST")
    kind = head.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (_PROTOBUF, _JSON):
        raise BadRequest("415 Unsupported Media Type", f"Content-Type is {_PROTOBUF} or {_JSON}")
    return signal, kind == _JSON


def _packed(head: RequestHead) -> bool:
    coding = head.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity", "gzip", "deflate"):
        raise BadRequest("415 Unsupported Media Type", "Content-Encoding is gzip, deflate or none")
    return coding in ("gzip", "deflate")


def _success(signal: str, taken: Taken, as_json: bool) -> bytes:
    name = "rejectedLogRecords" if signal == "logs" else "rejectedSpans"
    if as_json:
        partial = {"partialSuccess": {name: str(taken.rejected), "errorMessage": taken.why}} if taken.rejected else {}
        return json.dumps(partial).encode()
    return partial_success(signal, taken)


def partial_success(signal: str, taken: Taken) -> bytes:
    """The answer as protobuf. Of metrics, which are ignored, nothing is refused."""
    if not taken.rejected:
        return b""
    response: Any = ExportLogsServiceResponse() if signal == "logs" else ExportTraceServiceResponse()
    setattr(response.partial_success, "rejected_log_records" if signal == "logs" else "rejected_spans", taken.rejected)
    response.partial_success.error_message = printable_utf8(taken.why)
    return bytes(response.SerializeToString())


def printable_utf8(text: str) -> str:
    """Without halves of surrogates, which JSON may hold and protobuf may not."""
    return text.encode("utf-8", "replace").decode()


def _failure(code: int, why: str, as_json: bool) -> bytes:
    """A google.rpc.Status."""
    if as_json:
        return json.dumps({"code": code, "message": why}).encode()
    return bytes(Status(code=code, message=printable_utf8(why)).SerializeToString())


async def _answer(writer: asyncio.StreamWriter, status: str, body: bytes, as_json: bool, *, keep: bool) -> None:
    again = "Retry-After: 1\r\n" if status.startswith("429") else ""
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {_JSON if as_json else _PROTOBUF}\r\nContent-Length:"
        f" {len(body)}\r\n{again}"
    )
    writer.write((head + ("" if keep else "Connection: close\r\n") + "\r\n").encode() + body)
    await asyncio.wait_for(writer.drain(), PATIENCE_S)
    if not keep:  # what it still sends must not turn into a reset that takes the answer away
        writer.write_eof()
