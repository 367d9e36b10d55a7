"""The receiver's process: receives OTLP over HTTP (https://opentelemetry.io/docs/specs/otlp/#otlphttp) on loopback, and
hands decisions to the agent (agent/receiver/receiver_process.py), packed. It has no privilege and no numpy.

``python -m agent.receiver.receiver_worker SOCKET SETTINGS PARENT LISTENER``: descriptors, and the agent's pid. SETTINGS
is JSON: how keys are stored, what limiters are called. The process ends with the agent.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import zlib
from collections import Counter, deque
from http import HTTPStatus
from typing import Any

import h11
from google.protobuf.json_format import MessageToJson
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from agent.common.address import addr_bytes
from agent.common.fairness import PART, Budget, NoPlaceError, Places, UpperBound
from agent.common.lean import without
from agent.limiters.decision import KEYS, Malformed, use_salt_digest
from agent.limiters.naming import Names
from agent.posix.child_begin import begin_worker
from agent.receiver.mapping import Mapper
from agent.receiver.reading import records
from agent.receiver.receiver_messages import ACK, COUNTS, ENDS, HEAD, LOST, MAX_RECORDS, PACKER
from exporters.page_request import known_host
from exporters.peer import user

with without("ssl"):
    import asyncio

MAX_CONNECTIONS = 64
MAX_HEAD_BYTES = 16 << 10
#: Of a body, as it comes and unpacked.
MAX_BODY_BYTES = 2 << 20
#: A body of at most so many bytes does not wait for a larger one to be read.
SMALL_BYTES = 256 << 10
#: Decisions of all users: per second, and at once after a pause. A user may send a quarter.
RATE_PER_S, BURST = 20_000, 40_000
#: From the end of one request to the end of the next. Exporters that send every 5 s connect anew each time.
REQUEST_S = 4.0
#: For the agent to take a message; exporters give up after 10 s.
AGENT_S = 4.0
#: Rows that wait for the agent, also those of clients that have been answered with 503; beyond them all are.
WAITING_BYTES = 16 << 20
#: Of memory that the process may write to: 64 bodies, and what three of them are read into.
BUDGET_BYTES = 384 << 20


def _bound(what: str, most: float | str, then: str, count: str, unit: str = "", **more: Any) -> UpperBound:
    shown = f"`status` (`otlp_receiver`: `{count}`), `probe_status`" + (", `loss` (`otlp`)" if count in LOST else "")
    return UpperBound("report", what, most, then, shown, unit, **more)


_SIZES = f"{MAX_BODY_BYTES >> 20} MiB; {MAX_HEAD_BYTES >> 10} KiB; {MAX_RECORDS:,}"
_OF_BODY = "OTLP request: body, also uncompressed; headers; records"
_AGENT = "time for the agent to take decisions from the receiver"
#: For docs/limits.md.
BOUNDS = (
    _bound("connections to the OTLP receiver", MAX_CONNECTIONS, "closed", "refused", shared=True),
    _bound(_OF_BODY, _SIZES, "answered with 413; 431; 413", "too_large", setting="send smaller batches"),
    _bound("time for an OTLP request to arrive", REQUEST_S, "answered with 408", "slow", "s"),
    _bound("decisions by OTLP per second", RATE_PER_S, "rejected (`partial_success`)", "over_rate", shared=True),
    _bound(_AGENT, AGENT_S, "answered with 503 and `Retry-After`", "busy", "s"),
)
_HEARTBEAT_S = 1.0
_PATHS = {b"/v1/traces": "traces", b"/v1/logs": "logs", b"/v1/metrics": "metrics"}
_PROTOBUF, _JSON = b"application/x-protobuf", b"application/json"
#: HTTP status -> google.rpc.Code; all others are INVALID_ARGUMENT.
_CODES = {408: 4, 413: 8, 503: 14}


class RequestRefused(Exception):
    """status: of HTTP; count: what counts it, one of ``COUNTS``."""

    def __init__(self, status: int, count: str, message: str) -> None:
        super().__init__(message)
        self.status, self.count = status, count


class AgentLink:
    """The socket to the agent."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock, self._loop, self._sent = sock, asyncio.get_running_loop(), 0
        self._waiting: deque[tuple[int, asyncio.Future[None], int]] = deque()
        self._loop.add_reader(sock, self._answered)

    def send(self, message: bytes, *fds: int) -> None:
        """Raises BlockingIOError while the agent does not read."""
        try:
            socket.send_fds(self._sock, [message], fds)
        except ConnectionError:
            os._exit(0)

    async def hand_over(self, connection: int, ends: bytes, rows: bytes) -> None:
        """Returns once the agent has taken them. Raises OSError where it does not within AGENT_S, or too much waits."""
        if sum(size for _, _, size in self._waiting) > WAITING_BYTES:
            raise BlockingIOError
        self._sent += 1
        memory = os.memfd_create("tickscope-otlp")
        try:
            os.write(memory, rows)
            self.send(HEAD.pack(self._sent, connection, ends), memory)
        finally:
            os.close(memory)
        self._waiting.append((self._sent, taken := self._loop.create_future(), len(rows)))
        async with asyncio.timeout(AGENT_S):
            await taken

    def _answered(self) -> None:
        try:
            answer = self._sock.recv(ACK.size)
        except OSError:
            answer = b""
        if len(answer) != ACK.size:
            os._exit(0)
        while self._waiting and self._waiting[0][0] <= ACK.unpack(answer)[0]:
            taken = self._waiting.popleft()[1]
            if not taken.done():
                taken.set_result(None)


class OtlpServer:
    """counts: see agent/receiver/receiver_messages.py."""

    def __init__(self, mapper: Mapper, agent: AgentLink) -> None:
        self.counts = Counter(dict.fromkeys(COUNTS, 0))
        self.places = Places(MAX_CONNECTIONS)
        self._mapper, self._agent = mapper, agent
        self._budget = Budget(RATE_PER_S, BURST)
        self._accepted = 0
        self._small, self._large = asyncio.Semaphore(2), asyncio.Semaphore(1)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        client = OtlpClient(reader, writer)
        try:
            self.places.take(client.uid)
        except NoPlaceError:
            self.counts["refused"] += 1
            writer.transport.abort()
            return
        self._accepted += 1
        number = self._accepted
        try:
            while await self._request(client, number):
                client.http.start_next_cycle()
                await asyncio.sleep(0)  # others' turn: what is pipelined is there already
        except (OSError, h11.LocalProtocolError):
            pass
        finally:
            writer.transport.abort()
            self.places.give_back(client.uid)

    async def _request(self, client: OtlpClient, number: int) -> bool:
        """A request and its answer; False where no other one can follow."""
        try:
            if (request := await client.request()) is None:
                return False
            self.counts["requests"] += 1
            status, answer = 200, await self._taken(client, number, *request)
        except RequestRefused as error:
            self.counts[error.count] += 1
            status, answer = error.status, Status(code=_CODES.get(error.status, 3), message=_text(str(error)))
        await client.answer(status, answer)
        return bool(client.http.our_state is h11.DONE)

    async def _taken(self, client: OtlpClient, number: int, signal: str, data: bytes) -> Any:
        """The answer to a request whose decisions the agent has taken. Raises RequestRefused."""
        answer: Any = ExportLogsServiceResponse() if signal == "logs" else ExportTraceServiceResponse()
        if signal == "metrics":
            self.counts["metrics"] += 1
            return answer
        async with self._small if len(data) <= SMALL_BYTES else self._large:
            rows, seen, rejected, why = await asyncio.to_thread(self._rows, signal, data, client)
        self.counts.update(records=seen, ignored=seen - rejected - len(rows), invalid=rejected)
        now_ns = time.monotonic_ns()
        given = min(len(rows), max(0, int(self._budget.left(client.uid, now_ns))))
        self._budget.spend(client.uid, given, now_ns)
        if over := len(rows) - given:
            self.counts["over_rate"] += over
            rejected, why = rejected + over, why or f"a user may send {RATE_PER_S // PART} decisions a second"
        if given:
            try:
                await self._agent.hand_over(number, client.ends, b"".join(rows[:given]))
            except OSError:
                raise RequestRefused(503, "busy", "the agent does not take them now: try again") from None
        self.counts["decisions"] += given
        if rejected:
            setattr(answer.partial_success, f"rejected_{'log_records' if signal == 'logs' else 'spans'}", rejected)
            answer.partial_success.error_message = _text(why)
        return answer

    def _rows(self, signal: str, data: bytes, client: OtlpClient) -> tuple[list[bytes], int, int, str]:
        """Packed rows; how many records there are; how many of them cannot be read, and why the first."""
        rows: list[bytes] = []
        seen = invalid = 0
        why = ""
        user = {} if client.uid < 0 else {"reporter_uid": client.uid}
        try:
            for seen, record in enumerate(records(signal, data, client.as_json), 1):
                if seen > MAX_RECORDS:
                    raise RequestRefused(413, "too_large", f"a request has at most {MAX_RECORDS} spans, events or logs")
                try:
                    if record is not None and (values := self._mapper.decision(record)) is not None:
                        rows.append(PACKER.pack((values | user,)))
                except Malformed as error:
                    invalid, why = invalid + 1, why or str(error)
        except Malformed as error:
            raise RequestRefused(400, "malformed", str(error)) from None
        except MemoryError:
            raise _too_large() from None
        return rows, seen, invalid, why


class OtlpClient:
    """A connection of a client: h11 and the streams. uid: of the client's user, -1 unknown. ends: see
    agent/receiver/receiver_messages.py. as_json: whether its last request was.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.http, self._reader, self._writer = h11.Connection(h11.SERVER, MAX_HEAD_BYTES), reader, writer
        sock = writer.get_extra_info("socket")
        uid = user(sock)
        self.uid, self.as_json = -1 if uid is None else uid, False
        theirs, ours = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
        self.ends = ENDS.pack(addr_bytes(theirs[0]), theirs[1], addr_bytes(ours[0]), ours[1])

    async def request(self) -> tuple[str, bytes] | None:
        """The next request's signal and body, unpacked; None where none comes. Raises RequestRefused, OSError."""
        self.as_json = False
        try:
            async with asyncio.timeout(REQUEST_S):
                if type(request := await self._event()) is not h11.Request:
                    return None
                signal, self.as_json, packed = _wanted(request)
                body = await self._body()
        except h11.RemoteProtocolError as error:
            count = "too_large" if error.error_status_hint == 431 else "malformed"
            raise RequestRefused(error.error_status_hint, count, f"not OTLP over HTTP/1.1: {error}") from None
        except TimeoutError:
            if self.http.their_state is h11.IDLE and not self.http.trailing_data[0]:
                return None
            raise RequestRefused(408, "slow", f"a request has to come within {REQUEST_S:g} s") from None
        return signal, unpacked(body) if packed else bytes(body)

    async def answer(self, status: int, answer: Any) -> None:
        """After a refusal what is still sent is thrown away: closing at once would take the answer from the sender.
        Raises OSError.
        """
        content = MessageToJson(answer, indent=None).encode() if self.as_json else answer.SerializeToString()
        headers = {"Content-Type": (_JSON if self.as_json else _PROTOBUF).decode(), "Content-Length": str(len(content))}
        headers |= {"Connection": "close"} if status != 200 else {}
        headers |= {"Retry-After": "1"} if status == 503 else {}
        reason = HTTPStatus(status).phrase.encode()
        self._send(h11.Response(status_code=status, headers=list(headers.items()), reason=reason))
        self._send(h11.Data(data=content))
        self._send(h11.EndOfMessage())
        async with asyncio.timeout(REQUEST_S):
            await self._writer.drain()
            if status != 200:
                self._writer.write_eof()
                while await self._reader.read(1 << 16):
                    pass

    async def _event(self) -> Any:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            if self.http.they_are_waiting_for_100_continue:
                self._send(h11.InformationalResponse(status_code=100, headers=[]))
            self.http.receive_data(await self._reader.read(1 << 16))
        return event

    async def _body(self) -> bytearray:
        body, pieces = bytearray(), 0
        while type(event := await self._event()) is h11.Data:
            body += event.data
            if len(body) > MAX_BODY_BYTES:
                raise _too_large()
            if not (pieces := pieces + 1) % 64:  # others' turn
                await asyncio.sleep(0)
        return body

    def _send(self, event: Any) -> None:
        self._writer.write(self.http.send(event) or b"")


def unpacked(data: bytes | bytearray) -> bytes:
    """Of gzip or zlib, and no more than a body may have. Raises RequestRefused."""
    stream = zlib.decompressobj(47)
    try:
        whole = stream.decompress(data, MAX_BODY_BYTES + 1)
    except zlib.error as error:
        raise RequestRefused(400, "malformed", f"not gzip: {error}") from None
    if len(whole) > MAX_BODY_BYTES:
        raise _too_large()
    if not stream.eof or stream.unused_data:
        raise RequestRefused(400, "malformed", "not one whole gzip member")
    return whole


def _wanted(request: h11.Request) -> tuple[str, bool, bool]:
    """The signal; whether it is JSON; whether it is packed. A web site can make a browser send anything to a name of
    the site's own that stands for our address, so the host is checked. Raises RequestRefused.
    """
    headers = {name: value.strip().lower() for name, value in request.headers}
    kind, coding = headers.get(b"content-type", b"").partition(b";")[0].strip(), headers.get(b"content-encoding", b"")
    signal = _PATHS.get(request.target.partition(b"?")[0])
    for wrong, status, why in (
        (request.http_version > b"1.1", 400, "not OTLP over HTTP/1.1: gRPC is not received"),
        (not known_host(headers.get(b"host", b"localhost").decode(), ()), 421, "use a loopback address, or localhost"),
        (signal is None, 404, "the paths are /v1/traces, /v1/logs and /v1/metrics"),
        (request.method != b"POST", 405, "the method is POST"),
        (kind not in (_PROTOBUF, _JSON), 415, "Content-Type is application/x-protobuf or application/json"),
        (coding not in (b"", b"identity", b"gzip", b"deflate"), 415, "Content-Encoding is gzip, deflate or none"),
    ):
        if wrong:
            raise RequestRefused(status, "malformed", why)
    if int(headers.get(b"content-length", b"0")) > MAX_BODY_BYTES:
        raise _too_large()
    return str(signal), kind == _JSON, coding in (b"gzip", b"deflate")


def _too_large() -> RequestRefused:
    return RequestRefused(413, "too_large", f"a request has at most {MAX_BODY_BYTES} bytes: send smaller batches")


def _text(text: str) -> str:
    """As protobuf takes it: of a client's JSON, which may have half characters."""
    return text.encode("utf-8", "replace").decode()


async def run(agent: socket.socket, listener: socket.socket, settings: dict[str, Any]) -> None:
    """Never returns: the process ends with the agent."""
    link = AgentLink(agent)
    server = OtlpServer(Mapper(KEYS[settings["keys"]], Names(settings["names"]), settings["boot_id"]), link)
    async with await asyncio.start_server(server.serve, sock=listener):
        while True:
            with contextlib.suppress(BlockingIOError):
                link.send(json.dumps({**server.counts, "connections": server.places.used}).encode())
            await asyncio.sleep(_HEARTBEAT_S)


def main() -> None:
    agent, settings, (listener,) = begin_worker("tickscope-otlp", BUDGET_BYTES)
    use_salt_digest(bytes.fromhex(settings["salt"]))
    asyncio.run(run(agent, socket.socket(fileno=listener), settings))


if __name__ == "__main__":
    main()
