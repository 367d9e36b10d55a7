"""What who means harm sends the receiver, each kind on connections of its own, again and again: ``python -m
tests.unit.otlp_attacks HTTP GRPC [NAME...]``, ports; a name may come several times. Says ``at it`` when all have
begun.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator

import grpc

from tests.unit.otlp_pieces import spans

_HEAD = "POST /v1/{} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/{}\r\n"
_MOST = 2 << 20
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _WINDOW, _CONTINUATION = 0, 1, 3, 4, 6, 8, 9


def _http(body: bytes, kind: str = "json", signal: str = "traces", more: str = "") -> bytes:
    return (_HEAD.format(signal, kind) + more + f"Content-Length: {len(body)}\r\n\r\n").encode() + body


def _frame(kind: int, flags: int, stream: int, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + data


def _size(n: int) -> bytes:
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def _deep_protobuf() -> bytes:
    value = b""
    for _ in range(20_000):  # array_value.values, again and again
        value = b"\x0a" + _size(len(value)) + value
        value = b"\x2a" + _size(len(value)) + value
    for tag in (b"\x12", b"\x4a", b"\x12", b"\x12", b"\x0a"):
        value = tag + _size(len(value)) + value
    return value


def _request(path: bytes) -> bytes:
    """Literal fields, not indexed."""
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ]
    return b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields)


_EXPORT = _request(b"/opentelemetry.proto.collector.trace.v1.TraceService/Export"[:126])


def deep_json() -> Iterator[bytes]:
    yield _http(b'{"resourceSpans":' + b"[" * 1_000_000)


def many_attributes() -> Iterator[bytes]:
    one = {"key": "rate_limiting.limit", "value": {"intValue": "1"}}
    yield _http(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{"attributes": [one] * 25_000}]}]}]}).encode())


def many_spans() -> Iterator[bytes]:
    yield _http(spans(*[{"rate_limiting.result": "allowed"}] * 25_000), "x-protobuf")


def long_texts() -> Iterator[bytes]:
    yield _http(
        spans({"rate_limiting.result": "x" * (_MOST // 4), "rate_limiting.key": "k" * (_MOST // 4)}), "x-protobuf"
    )


def long_numbers() -> Iterator[bytes]:
    yield _http(b'{"resourceSpans": [' + b"9" * (_MOST - 100) + b"]}")


def deep_protobuf() -> Iterator[bytes]:
    yield _http(_deep_protobuf(), "x-protobuf")


def bombs() -> Iterator[bytes]:
    yield _http(gzip.compress(gzip.compress(bytes(1 << 28), 1), 1), more="Content-Encoding: gzip\r\n")


def many_bombs() -> Iterator[bytes]:
    yield _http(gzip.compress(b"", 1) * 80_000, more="Content-Encoding: gzip\r\n")


def slow_head() -> Iterator[bytes]:
    for byte in _http(b"{}"):
        yield bytes([byte])
        time.sleep(0.2)


def pipelined() -> Iterator[bytes]:
    """Whose answers nobody reads."""
    while True:
        yield _http(b"", "json", "metrics") * 500


def endless_chunks() -> Iterator[bytes]:
    yield _HEAD.format("traces", "json").encode() + b"Transfer-Encoding: chunked\r\n\r\n"
    while True:
        yield b"1\r\n \r\n" * 1000


def endless_trailers() -> Iterator[bytes]:
    yield _HEAD.format("traces", "json").encode() + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"
    while True:
        yield b"a: b\r\n" * 1000


def headers() -> Iterator[bytes]:
    yield b"POST /v1/traces HTTP/1.1\r\n"
    while True:
        yield b"a: b\r\n" * 1000


def rapid_reset() -> Iterator[bytes]:
    yield _PREFACE
    stream = 1
    while True:
        piece = b""
        for _ in range(200):
            piece += _frame(_HEADERS, 4, stream, _EXPORT) + _frame(_RESET, 0, stream, b"\0\0\0\x08")
            stream += 2
        yield piece


def continuation() -> Iterator[bytes]:
    yield _PREFACE + _frame(_HEADERS, 0, 1, _EXPORT)
    while True:
        yield _frame(_CONTINUATION, 0, 1, b"\0\1a\1b" * 200) * 50


def empty_continuation() -> Iterator[bytes]:
    yield _PREFACE + _frame(_HEADERS, 0, 1, _EXPORT)
    while True:
        yield _frame(_CONTINUATION, 0, 1) * 5000


def pings() -> Iterator[bytes]:
    yield _PREFACE
    while True:
        yield _frame(_PING, 0, 0, bytes(8)) * 3000


def settings() -> Iterator[bytes]:
    yield _PREFACE
    while True:
        yield _frame(_SETTINGS, 0, 0, b"\0\4\0\0\xff\xff") * 3000


def windows() -> Iterator[bytes]:
    yield _PREFACE
    while True:
        yield _frame(_WINDOW, 0, 0, b"\0\0\0\1") * 3000


def slow_message() -> Iterator[bytes]:
    """All streams that there may be, each with a message that never comes."""
    yield _PREFACE
    for stream in range(1, 20, 2):
        yield _frame(_HEADERS, 4, stream, _EXPORT) + _frame(_DATA, 0, stream, b"\0\0\x10\0\0x")
    time.sleep(30)


def empty_data() -> Iterator[bytes]:
    yield _PREFACE + _frame(_HEADERS, 4, 1, _EXPORT)
    while True:
        yield _frame(_DATA, 0, 1) * 3000


def _grpc_bombs(port: int) -> None:
    bodies = gzip.compress(bytes(1 << 28), 1), _deep_protobuf(), spans(*[{"rate_limiting.result": "allowed"}] * 25_000)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        export = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
        while True:
            for body in bodies:
                with contextlib.suppress(grpc.RpcError):
                    export(body, timeout=5)


HTTP: tuple[Callable[[], Iterator[bytes]], ...] = (
    deep_json,
    many_attributes,
    many_spans,
    long_texts,
    long_numbers,
    deep_protobuf,
    bombs,
    many_bombs,
    slow_head,
    pipelined,
    endless_chunks,
    endless_trailers,
    headers,
)
GRPC: tuple[Callable[[], Iterator[bytes]], ...] = (
    rapid_reset,
    continuation,
    empty_continuation,
    pings,
    settings,
    windows,
    slow_message,
    empty_data,
)


def _again(port: int, kind: Callable[[], Iterator[bytes]]) -> None:
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
            for piece in kind():
                sock.sendall(piece)
            sock.recv(1 << 16)
        time.sleep(0.01)


def main() -> None:
    ports, wanted = (int(sys.argv[1]), int(sys.argv[2])), sys.argv[3:]
    begun = [
        threading.Thread(target=_again, args=(port, kind), daemon=True)
        for port, kinds in zip(ports, (HTTP, GRPC), strict=True)
        for kind in kinds
        for _ in range(wanted.count(kind.__name__) if wanted else 1)
    ]
    if not wanted or "grpc_bombs" in wanted:
        begun.append(threading.Thread(target=_grpc_bombs, args=(ports[1],), daemon=True))
    for one in begun:
        one.start()
    print("at it", flush=True)
    os.read(0, 1)
    os._exit(0)


if __name__ == "__main__":
    main()
