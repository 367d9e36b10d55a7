"""An HTTP/1.1 request of OTLP, as it comes on a stream: no more of it is read than it may have."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

#: Of a head; what a line of a chunked body may have.
MOST_HEAD_BYTES = 16 << 10
_MOST_LINE_BYTES = 256
#: Of a body: its most bytes, 64 in each; what is read of them before others' turn.
_MOST_CHUNKS, _AT_ONCE = 32_768, 64


class BadRequest(Exception):
    """status: with which it is answered, such as ``400 Bad Request``. The connection ends with it."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


@dataclass(frozen=True)
class RequestHead:
    """headers: names in lower case; of several with one name the values, with commas."""

    method: str
    path: str
    old: bool
    headers: Mapping[str, str]

    @property
    def keeps(self) -> bool:
        """Whether the client wants the connection to go on."""
        said = self.headers.get("connection", "").lower()
        return "keep-alive" in said if self.old else "close" not in said


async def read_head(reader: asyncio.StreamReader) -> RequestHead | None:
    """The next one, None where the client has ended. Raises BadRequest and IncompleteReadError."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise
    except asyncio.LimitOverrunError as error:
        raise BadRequest(
            "431 Request Header Fields Too Large", f"a head has {MOST_HEAD_BYTES} bytes at most"
        ) from error
    if len(raw) > MOST_HEAD_BYTES:
        raise BadRequest("431 Request Header Fields Too Large", f"a head has {MOST_HEAD_BYTES} bytes at most")
    first, *lines = raw[:-4].decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequest("400 Bad Request", "this is OTLP over HTTP/1.1; gRPC has a port of its own")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise BadRequest("400 Bad Request", "a header is NAME: VALUE")
        name = name.lower()
        headers[name] = f"{headers[name]},{value.strip()}" if name in headers else value.strip()
    return RequestHead(words[0], words[1].partition("?")[0], words[2] == "HTTP/1.0", headers)


async def read_body(reader: asyncio.StreamReader, head: RequestHead, most: int) -> bytes:
    """Raises BadRequest, also as soon as it is known that there is more than ``most``, and IncompleteReadError."""
    coding, length = head.headers.get("transfer-encoding", ""), head.headers.get("content-length", "")
    if coding:
        if coding.lower() != "chunked" or length:
            raise BadRequest("400 Bad Request", "a body is chunked, or has its length told, and never both")
        return await _chunks(reader, most)
    if not (length.isascii() and length.isdigit() and len(length) < 16):
        raise BadRequest("411 Length Required", "Content-Length is missing, or no number")
    if int(length) > most:
        raise _too_large(most)
    return await reader.readexactly(int(length))


async def _chunks(reader: asyncio.StreamReader, most: int) -> bytes:
    body = bytearray()
    for n in range(_MOST_CHUNKS):
        if not n % _AT_ONCE:
            await asyncio.sleep(0)
        line = (await _line(reader)).partition(b";")[0].strip()
        try:
            size = int(line, 16) if len(line) < 16 and line.isalnum() else -1
        except ValueError:
            size = -1
        if size < 0:
            raise BadRequest("400 Bad Request", "a chunk's size is no number")
        if len(body) + size > most:
            raise _too_large(most)
        if not size:
            return await _after_chunks(reader, body)
        body += await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            raise BadRequest("400 Bad Request", "a chunk has another size than it says")
    raise BadRequest("413 Content Too Large", f"a body has {_MOST_CHUNKS} chunks at most")


async def _after_chunks(reader: asyncio.StreamReader, body: bytearray) -> bytes:
    for _ in range(16):  # trailers
        if not await _line(reader):
            return bytes(body)
    raise BadRequest("400 Bad Request", "too many trailers")


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        line = await reader.readuntil(b"\r\n")
    except asyncio.LimitOverrunError as error:
        raise BadRequest("400 Bad Request", "a chunk's size is no number") from error
    if len(line) > _MOST_LINE_BYTES:
        raise BadRequest("400 Bad Request", "a chunk's size is no number")
    return line[:-2]


def _too_large(most: int) -> BadRequest:
    return BadRequest("413 Content Too Large", f"a request has {most} bytes at most: send smaller batches")
