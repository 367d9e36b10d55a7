"""Orders the pieces of Redis connections, and pairs each request with its reply. Pure: numpy records in, exchanges out.

A connection is read from where a request begins and nothing is outstanding; after a gap that matters, from the next
such place. The kernel marks what it leaves out (bpf/redis.bpf.c).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from agent.common.recent import Recent
from agent.redis_wire.resp_stream import Garbage, Push, ReplyError, RespStream

FLOWS = 4096
_FIRST, _WHOLE, _IGNORED = range(3)
_HELD, _WAITING = 16, 1024
#: Nothing is outstanding on a connection that was quiet for this long.
_QUIET_NS = 500_000
#: After these commands, replies do not follow requests one by one.
_STREAMS = frozenset((b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE", b"MONITOR", b"PSYNC", b"SYNC", b"REPLCONF"))
#: Commands without a decision after which a connection is ignored for a while.
_IDLE_COMMANDS = 512


class Ends(NamedTuple):
    """A connection. server, client: 16 bytes."""

    server: bytes
    server_port: int
    client: bytes
    client_port: int
    netns: int


class RedisExchange(NamedTuple):
    """A request with its reply. begun_ns: its first byte. ended_ns: the last byte of the reply. command: in capitals.
    ends: positions of both in the byte streams, equal wherever they are observed. behind: not the first of its segment.
    skipped: requests for decisions on this connection that were left out before it.
    """

    flow: Flow
    command: bytes
    words: list[bytes]
    reply: Any
    begun_ns: int
    ended_ns: int
    ends: tuple[int, int]
    behind: bool
    skipped: int


class _Waiting(NamedTuple):
    command: bytes
    words: list[bytes]
    begun_ns: int
    seq: int
    behind: bool
    skipped: int


class _Direction:
    """One direction of a connection."""

    __slots__ = ("end", "held", "next", "stream")

    def __init__(self, *, requests: bool) -> None:
        self.stream = RespStream(requests=requests)
        self.next: int | None = None
        self.end = 0
        self.held: dict[int, tuple[bytes, int]] = {}

    def restart(self, seq: int) -> None:
        self.stream.reset()
        self.next = seq
        self.held.clear()

    def take(self, seq: int, data: bytes, t_ns: int) -> Iterator[tuple[bytes, int]]:
        """The data that comes next, (bytes, t_ns) each. Raises Garbage if too much is missing."""
        assert self.next is not None
        ahead = (seq - self.next + (1 << 31)) % (1 << 32) - (1 << 31)
        if ahead > 0 and seq == self.end and self.stream.missing(ahead):  # the end of a long segment, which is not sent
            self.next = seq
            ahead = 0
        if ahead > 0:
            if len(self.held) >= _HELD:
                raise Garbage("missing")
            self.held[seq] = data, t_ns
            return
        if -ahead >= len(data):
            return
        yield data[-ahead:], t_ns
        self.next = (seq + len(data)) % (1 << 32)
        while self.held and (more := self.held.pop(self.next, None)) is not None:
            yield more
            self.next = (self.next + len(more[0])) % (1 << 32)


class Flow:
    """One connection."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ends: Ends | None = None
        self.client_proc: np.void | None = None
        self.server_proc: np.void | None = None
        self.requests, self.replies = _Direction(requests=True), _Direction(requests=False)
        self.waiting: deque[_Waiting] = deque()
        self.together: list[_Waiting] | None = None
        self.in_step = False
        self.idle_commands = 0
        self.whole = self.at_front = False
        self.kept: dict[bytes, Any] = {}
        self.made: dict[bytes, Any] = {}

    def lose_step(self) -> None:
        self.in_step, self.together = False, None
        self.waiting.clear()

    def know(self, piece: np.void) -> None:
        """Takes both ends, and the process at the near one, from a segment's first piece."""
        if self.ends is None:
            self.ends = Ends(
                piece["server"].tobytes(),
                int(piece["server_port"]),
                piece["client"].tobytes(),
                int(piece["client_port"]),
                int(piece["netns"]),
            )
        if piece["proc"]["pid"] != 0xFFFFFFFF:
            if piece["at_server"]:
                self.server_proc = piece["proc"]
            else:
                self.client_proc = piece["proc"]

    def knows(self, at_server: int) -> bool:
        return (self.server_proc if at_server else self.client_proc) is not None


class Piece(NamedTuple):
    """A record of ``struct redis_piece``, without what only a segment's first one has."""

    flow: int
    t_ns: int
    idle_ns: int
    seq: int
    ack: int
    end: int
    size: int
    reply: int
    first: int
    gap: int
    state: int
    at_server: int
    skipped: int


class Flows:
    """All connections. ignore(number): this one is not worth its cost. follow(number): all of it is wanted. counts:
    what could not be read, by reason.
    """

    def __init__(
        self, ignore: Callable[[int], None] = lambda _: None, follow: Callable[[int], None] = lambda _: None
    ) -> None:
        self._flows = Recent[int, Flow](FLOWS)
        self._ignore, self._follow = ignore, follow
        self.counts = {"garbage": 0, "out_of_step": 0, "unanswered": 0, "streams": 0}

    def feed(self, records: np.ndarray) -> Iterator[RedisExchange]:
        """Exchanges in the kernel's order; records of ``struct redis_piece``."""
        columns = [records[name].tolist() for name in Piece._fields]
        texts = np.ascontiguousarray(records["data"]).tobytes()
        width = records.dtype["data"].itemsize
        for at, values in enumerate(zip(*columns, strict=True)):
            piece = Piece(*values)
            flow = self.flow(piece.flow)
            if piece.first and not (flow.ends and flow.knows(piece.at_server)):
                flow.know(records[at].copy())
            yield from self._piece(flow, piece, texts[at * width : at * width + piece.size])

    def flow(self, number: int) -> Flow:
        found = self._flows[number] = self._flows.get(number) or Flow(number)
        return found

    def _piece(self, flow: Flow, piece: Piece, data: bytes) -> Iterator[RedisExchange]:
        if not piece.reply and (piece.gap or not flow.in_step) and piece.first and not self._step_in(flow, piece, data):
            return
        if not flow.in_step:
            return
        direction = flow.replies if piece.reply else flow.requests
        if piece.first and not piece.reply and direction.stream.between:
            flow.at_front = True
        try:
            for part, when_ns in direction.take(piece.seq, data, piece.t_ns):
                for value, begun_ns in direction.stream.feed(part, when_ns):
                    if piece.reply:
                        yield from self._answer(flow, value, when_ns, piece.end)
                    else:
                        self._add_request(flow, value, begun_ns, piece, not flow.at_front)
                        flow.at_front = False
        except Garbage as error:
            self.counts["out_of_step" if str(error) == "missing" else "garbage"] += 1
            flow.lose_step()
        direction.end = piece.end

    def _step_in(self, flow: Flow, piece: Piece, data: bytes) -> bool:
        """A request begins here: whether the connection can be read from here on."""
        if flow.in_step and flow.waiting:
            self.counts["unanswered"] += len(flow.waiting)
        flow.lose_step()
        if data[:1] != b"*" or (piece.state == _WHOLE and piece.idle_ns < _QUIET_NS):
            self.counts["out_of_step"] += 1
            return False
        flow.requests.restart(piece.seq)
        flow.replies.restart(piece.ack)
        flow.in_step = True
        return True

    def _add_request(self, flow: Flow, words: list[Any], begun_ns: int, piece: Piece, behind: bool) -> None:
        if not words or not isinstance(words[0], bytes):
            raise Garbage("request")
        command = words[0][:32].upper()
        if command in _STREAMS or (command == b"CLIENT" and len(words) > 1 and words[1].upper() == b"REPLY"):
            self.counts["streams"] += 1
            self._leave(flow)
            return
        if len(flow.waiting) >= _WAITING:
            raise Garbage("unanswered")
        flow.waiting.append(_Waiting(command, words, begun_ns, piece.end, behind, piece.skipped))

    def want_whole(self, flow: Flow) -> None:
        if not flow.whole:
            flow.whole = True
            self._follow(flow.number)

    def _leave(self, flow: Flow) -> None:
        flow.lose_step()
        flow.idle_commands = 0
        flow.whole = False
        self._ignore(flow.number)

    def _answer(self, flow: Flow, reply: Any, now_ns: int, seq: int) -> Iterator[RedisExchange]:
        if isinstance(reply, Push):
            return
        if not flow.waiting:
            raise Garbage("answer")
        request = flow.waiting.popleft()
        flow.idle_commands += 1
        if flow.idle_commands > _IDLE_COMMANDS:
            self._leave(flow)
            return
        if flow.together is not None and request.command not in (b"MULTI", b"EXEC", b"DISCARD", b"RESET"):
            if reply == b"QUEUED" and len(flow.together) < _WAITING:
                flow.together.append(request)
            return
        if request.command == b"MULTI":
            flow.together = None if isinstance(reply, ReplyError) else []
            if not flow.waiting:  # queued requests come in segments of their own
                self.want_whole(flow)
        elif request.command == b"EXEC":
            queued, flow.together = flow.together or [], None
            if isinstance(reply, list) and len(reply) == len(queued):
                for n, (one, answer) in enumerate(zip(queued, reply, strict=True)):
                    yield RedisExchange(
                        flow,
                        one.command,
                        one.words,
                        answer,
                        one.begun_ns,
                        now_ns,
                        (one.seq + n, seq),
                        False,
                        one.skipped,
                    )
        elif request.command in (b"DISCARD", b"RESET"):
            flow.together = None
        else:
            yield RedisExchange(
                flow,
                request.command,
                request.words,
                reply,
                request.begun_ns,
                now_ns,
                (request.seq, seq),
                request.behind,
                request.skipped,
            )
