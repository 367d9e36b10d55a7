"""What a hostile client sends the receiver, each kind on connections of its own, again and again: ``python -m
tests.unit.otlp_attacks PORT [NAME...]``; a name may come several times. Prints ``at it`` when all have begun.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

from tests.unit.otlp_pieces import spans

_HEAD = "POST /v1/{} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/{}\r\n"
_MOST = 2 << 20


def _http(body: bytes, kind: str = "json", signal: str = "traces", more: str = "") -> bytes:
    return (_HEAD.format(signal, kind) + more + f"Content-Length: {len(body)}\r\n\r\n").encode() + body


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


def many_headers() -> Iterator[bytes]:
    yield b"POST /v1/traces HTTP/1.1\r\n" + b"".join(b"h%d: x\r\n" % n for n in range(10_000)) + b"\r\n"


def smuggled() -> Iterator[bytes]:
    """Two lengths, of which another server takes the other one."""
    head = _HEAD.format("traces", "json").encode()
    inner = _http(b"{}")
    yield head + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner
    yield head + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}" + inner
    yield head + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + inner


def chunk_sizes() -> Iterator[bytes]:
    head = _HEAD.format("traces", "json").encode() + b"Transfer-Encoding: chunked\r\n\r\n"
    yield head + random.choice([b"f" * 17, b"-1", b"0x1", b"", b"1" * 10_000, b"1;" + b"e" * (1 << 20)]) + b"\r\n{\r\n"


def wrong_lengths() -> Iterator[bytes]:
    """Less than announced, and then no more: half closed, or cut off."""
    yield _http(b"{}").replace(b"Length: 2", b"Length: %d" % random.choice([1, 3, _MOST]))


def silent() -> Iterator[bytes]:
    yield b""
    time.sleep(30)


def http2() -> Iterator[bytes]:
    yield b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0" * 5000


KINDS: tuple[Callable[[], Iterator[bytes]], ...] = (
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
    many_headers,
    smuggled,
    chunk_sizes,
    wrong_lengths,
    silent,
    http2,
)


def _again(port: int, kind: Callable[[], Iterator[bytes]]) -> None:
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
            for piece in kind():
                sock.sendall(piece)
            if random.random() < 0.5:
                sock.shutdown(socket.SHUT_WR)
            sock.recv(1 << 16)
        time.sleep(0.01)


def main() -> None:
    port, wanted = int(sys.argv[1]), sys.argv[2:]
    for kind in KINDS:
        for _ in range(wanted.count(kind.__name__) if wanted else 1):
            threading.Thread(target=_again, args=(port, kind), daemon=True).start()
    print("at it", flush=True)
    os.read(0, 1)
    os._exit(0)


if __name__ == "__main__":
    main()
