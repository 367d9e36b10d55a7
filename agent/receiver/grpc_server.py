"""OTLP/gRPC. gRPC listens on a Unix socket in a directory of the process's own only; connections come through
agent/receiver/senders.py, so that they are counted by user before gRPC has them, and are known to it by the names that
their ends here have.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import sys
import time
from collections.abc import Coroutine
from typing import Any

import grpc
import grpc.aio

from agent.receiver.header_blocks import HeaderBlocks
from agent.receiver.http import partial_success
from agent.receiver.senders import OtlpSender
from agent.receiver.taking import MOST_BYTES, PATIENCE_S, Desk, RequestRefused
from agent.receiver.turns import FramePace

_SOCKET = "grpc.sock"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_NO_GRPC = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 52\r\nConnection: close\r\n\r\nthis is OTLP over gRPC; HTTP has a"
    b" port of its own.\n"
)
_SERVICE = "/opentelemetry.proto.collector.{}.v1.{}Service/Export"
_METHODS = {
    _SERVICE.format(name, service): signal
    for name, service, signal in (
        ("trace", "Trace", "traces"),
        ("logs", "Logs", "logs"),
        ("metrics", "Metrics", "metrics"),
    )
}
_OPTIONS = [
    (
        "grpc.per_message_decompression",
        0,
    ),  # gRPC's own knows no bound: a message comes as it was sent, and is unpacked here
    ("grpc.max_receive_message_length", MOST_BYTES),
    ("grpc.max_concurrent_streams", 4),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.http2.bdp_probe", 0),  # which would let a stream have more than a window before anybody reads it
    ("grpc.so_reuseport", 0),
    ("grpc.server_max_unrequested_time_in_server", 10),
]
#: Read at once, which is what others wait for: some 1,800 frames at most.
_PIECE_BYTES = 16 << 10
_NAME = "tickscope-otlp-"


class GrpcServer(grpc.GenericRpcHandler):  # type: ignore[misc]
    """``serve`` is what a connection's task does."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._named: dict[str, OtlpSender] = {}
        self._pace = FramePace()
        self._server = grpc.aio.server(options=_OPTIONS)
        self._server.add_generic_rpc_handlers((self,))

    async def start(self) -> None:
        """In the current directory. Raises RuntimeError."""
        self._server.add_insecure_port(f"unix:{_SOCKET}")
        await self._server.start()

    def service(self, details: Any) -> Any:
        signal = _METHODS.get(details.method)
        if signal is None:
            return None

        async def export(_: Any, context: Any) -> bytes:
            return await self._export(signal, context)

        return grpc.stream_unary_rpc_method_handler(
            export
        )  # a stream, so that it is known whose it is before it is read

    async def serve(self, sender: OtlpSender) -> None:
        reader, writer = await asyncio.open_connection(sock=sender.sock, limit=_PIECE_BYTES)
        name = secrets.token_hex(16)  # each its own: nobody else can take it before us
        inner: asyncio.StreamWriter | None = None
        try:
            try:
                begun = await asyncio.wait_for(reader.readexactly(len(_PREFACE)), PATIENCE_S)
            except (TimeoutError, asyncio.IncompleteReadError) as error:
                begun = error.partial if isinstance(error, asyncio.IncompleteReadError) else b""
                if not begun:
                    return
            if begun != _PREFACE:
                self._desk.counts["malformed"] += 1
                writer.write(_NO_GRPC)
                await asyncio.wait_for(writer.drain(), PATIENCE_S)
                writer.write_eof()
                return
            end = socket.socket(socket.AF_UNIX)
            end.setblocking(False)
            end.bind(f"\0{_NAME}{name}")
            self._named[name] = sender
            try:
                end.connect(_SOCKET)
            except FileNotFoundError:  # somebody removed the run directory: another process makes its own again
                sys.stderr.write("tickscope-otlp: the socket of gRPC was removed\n")
                os._exit(1)
            inside, inner = await asyncio.open_connection(sock=end, limit=_PIECE_BYTES)
            inner.write(begun)
            await _until_one_ends(self._pass_on(sender, reader, inner), _answer(inside, writer))
        finally:
            self._named.pop(name, None)
            writer.transport.abort()
            if inner is not None:
                inner.transport.abort()

    async def _pass_on(self, sender: OtlpSender, reader: asyncio.StreamReader, inner: asyncio.StreamWriter) -> None:
        """Until the client ends, or sends what is too long for headers. Whose user has sent more frames than one may
        has to wait, also on a new connection.
        """
        blocks = HeaderBlocks()
        wait_s = self._pace.wait_s(sender.uid, 0, time.monotonic())
        with contextlib.suppress(OSError):
            while True:
                if wait_s:
                    self._desk.counts["held_up"] += 1
                    await asyncio.sleep(wait_s)
                if not (data := await reader.read(_PIECE_BYTES)):
                    return
                before = blocks.frames
                fits = blocks.fit(data)
                # Before anything that may end: gRPC closes the connection of who sends what it does not like.
                wait_s = self._pace.wait_s(sender.uid, blocks.frames - before, time.monotonic())
                if not fits:
                    return
                inner.write(data)
                await inner.drain()

    async def _export(self, signal: str, context: Any) -> bytes:
        try:
            sender = self._named[context.peer().rpartition(_NAME)[2]]
        except KeyError:  # it has gone meanwhile, or is nobody that came through us
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection has ended")
            raise
        try:
            with self._desk.under_way(sender):
                try:
                    data = await asyncio.wait_for(context.read(), PATIENCE_S)
                except TimeoutError:
                    raise RequestRefused("slow", f"a request has to be there within {PATIENCE_S:g} s") from None
                if not isinstance(data, bytes):
                    raise RequestRefused("malformed", "no message")
                taken = await self._desk.take(sender, signal, data, packed=_packed(data))
        except RequestRefused as error:
            self._desk.counts[error.kind] += 1
            await context.abort(_CODES[error.kind], error.message)
            raise
        return partial_success(signal, taken)


_CODES = {
    "malformed": grpc.StatusCode.INVALID_ARGUMENT,
    "too_large": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "slow": grpc.StatusCode.DEADLINE_EXCEEDED,
    "busy": grpc.StatusCode.UNAVAILABLE,
}


def _packed(data: bytes) -> bool:
    """Whether it is gzip or zlib: no request begins like the one, and none that means something like the other (a field
    15 of a number).
    """
    return data[:2] == b"\x1f\x8b" or (
        data[:1] == b"\x78" and len(data) > 1 and int.from_bytes(data[:2], "big") % 31 == 0
    )


async def _answer(inside: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until gRPC ends the connection."""
    with contextlib.suppress(OSError):
        while data := await inside.read(_PIECE_BYTES):
            writer.write(data)
            await writer.drain()


async def _until_one_ends(*ways: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
