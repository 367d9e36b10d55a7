"""The intake's sockets, read fairly: each user with connections gets as much as any other, and so do all senders of
datagrams together.

A datagram socket is one queue: a sender that fills it blocks the others. A connection (SOCK_SEQPACKET; SOCK_STREAM for
Java, Node and Lua, which have no other) is a queue of its sender's own, so no other sender fills it, and no user can
have all connections (agent/common/fairness.py).
"""

from __future__ import annotations

import contextlib
import ctypes as ct
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from agent.columns import NULL_I64
from agent.common.fairness import Places, UpperBound
from agent.limiters.arrival import STAMP_BYTES, STAMP_TYPE, Arrival, Clocks, read_clocks, stamp
from agent.posix.listener import Listener, peer

MAX_MESSAGE_BYTES = 8192
CONNECTIONS = 256
#: Messages of one user before the next user's.
_QUANTUM = 64
#: Connections accepted per round.
_ACCEPTED = 16
# As plain integers: an operation on an enum's member takes as long as parsing a message.
_TRUNCATED, _SOCKET_LEVEL, _SENT_BY = int(socket.MSG_TRUNC), int(socket.SOL_SOCKET), int(socket.SCM_CREDENTIALS)
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
_ANCILLARY_BYTES = socket.CMSG_SPACE(_CREDENTIALS.size) + STAMP_BYTES
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "report",
        "connections to `intake.seq.sock` and `intake.stream.sock`",
        CONNECTIONS,
        "refused, with what was sent already",
        "`status` (`bounds`, `intake`), `probe_status` row `intake`, `loss` (`intake connections`)",
        shared=True,
    ),
    UpperBound(
        "report",
        "messages waiting in a connection to the intake",
        "the sender's socket buffer, 170 messages or more",
        "the sender gets EAGAIN",
        "`loss` (`intake senders`), by the sender's `dropped`",
        setting="the sender's SO_SNDBUF",
    ),
    UpperBound(
        "report",
        "message to the intake, or line of `intake.stream.sock`",
        MAX_MESSAGE_BYTES,
        "rejected as malformed",
        "`loss` (`intake`)",
        "bytes",
    ),
)


_NO_WAIT = int(socket.MSG_DONTWAIT)
#: struct iovec, struct mmsghdr, and a control message of credentials or a stamp (include/linux/socket.h), on LP64.
_IOVEC = np.dtype([("base", "<u8"), ("bytes", "<u8")])
_MMSGHDR = np.dtype(
    {
        "names": ["parts", "count", "control", "control_bytes", "flags", "bytes"],
        "formats": ["<u8", "<u8", "<u8", "<u8", "<i4", "<u4"],
        "offsets": [16, 24, 32, 40, 48, 56],
        "itemsize": 64,
    }
)
_CONTROL = np.dtype(
    {
        "names": ["level", "type", "pid", "uid", "seconds", "ns"],
        "formats": ["<i4", "<i4", "<i4", "<u4", "<i8", "<i8"],
        "offsets": [8, 12, 16, 20, 16, 24],
        "itemsize": 32,
    }
)


class Message(NamedTuple):
    """A received message. pid, uid: of the sender, NULL_I64 unknown. sent_ns, read_ns: CLOCK_BOOTTIME."""

    data: bytes | bytearray
    whole: bool
    pid: int
    uid: int
    sent_ns: int
    read_ns: int


class Ended(Exception):
    """The peer has closed its connection, and all its data was read."""


class Inlet:
    """One socket with messages. uid: of the connection, None for the shared datagram socket."""

    def __init__(self, sock: socket.socket, uid: int | None, clocks: Clocks) -> None:
        sock.setblocking(False)
        self.sock, self.uid, self._arrival = sock, uid, Arrival(clocks)

    def receive(self, clocks: Clocks) -> Message | None:
        """The next message, or None if there is none now. clocks: read before, in this round. Raises Ended."""
        try:
            data, ancillary, flags, _ = self.sock.recvmsg(MAX_MESSAGE_BYTES, _ANCILLARY_BYTES)
        except BlockingIOError:
            self._arrival.emptied(clocks)
            return None
        except ConnectionError as error:
            raise Ended from error
        if not data and not ancillary and self.uid is not None:  # an empty message has its sender's credentials
            raise Ended
        read_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        return Message(
            data,
            not flags & _TRUNCATED,
            *_sender(ancillary),
            self._arrival.sent_ns(ancillary, read_ns, clocks),
            read_ns,
        )


class Datagrams(Inlet):
    """The datagram socket; one system call reads up to _QUANTUM messages (recvmmsg(2))."""

    def __init__(self, sock: socket.socket, clocks: Clocks) -> None:
        super().__init__(sock, None, clocks)
        self._libc = ct.CDLL(None, use_errno=True)
        self._data = bytearray(_QUANTUM * MAX_MESSAGE_BYTES)
        self._control = np.zeros((_QUANTUM, 2), _CONTROL)
        self._parts = np.zeros(_QUANTUM, _IOVEC)
        self._headers = np.zeros(_QUANTUM, _MMSGHDR)
        every = np.arange(_QUANTUM, dtype=np.uint64)
        data_at = ct.addressof(ct.c_char.from_buffer(self._data))
        self._parts["base"] = data_at + every * np.uint64(MAX_MESSAGE_BYTES)
        self._parts["bytes"] = MAX_MESSAGE_BYTES
        self._headers["parts"] = self._parts.ctypes.data + every * np.uint64(_IOVEC.itemsize)
        self._headers["count"] = 1
        self._headers["control"] = self._control.ctypes.data + every * np.uint64(2 * _CONTROL.itemsize)

    def receive_some(self, clocks: Clocks, most: int) -> list[Message]:
        """At most ``most`` messages, and _QUANTUM. clocks: read before, in this round."""
        self._headers["control_bytes"] = 2 * _CONTROL.itemsize
        self._control[:] = 0
        n = self._libc.recvmmsg(
            self.sock.fileno(), ct.c_void_p(self._headers.ctypes.data), min(most, _QUANTUM), _NO_WAIT, None
        )
        if n <= 0:  # no message, or the socket is shut down
            self._arrival.emptied(clocks)
            return []
        read_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        headers, control = self._headers[:n], self._control[:n]
        socket_level = control["level"] == _SOCKET_LEVEL
        sent_by, stamped = socket_level & (control["type"] == _SENT_BY), socket_level & (control["type"] == STAMP_TYPE)
        pid = np.where(sent_by, control["pid"], 0).sum(axis=1)
        uid = np.where(sent_by.any(axis=1), np.where(sent_by, control["uid"], 0).sum(axis=1), NULL_I64)
        stamp_ns = np.where(stamped, control["seconds"] * 1_000_000_000 + control["ns"], 0).sum(axis=1)
        return [
            Message(self._data[at : at + size], not flags & _TRUNCATED, its_pid or NULL_I64, its_uid, its_ns, read_ns)
            for at, size, flags, its_pid, its_uid, its_ns in zip(
                range(0, n * MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES),
                headers["bytes"].tolist(),
                headers["flags"].tolist(),
                pid.tolist(),
                uid.tolist(),
                self._arrival.all_sent_ns(stamp_ns, read_ns, clocks).tolist(),
                strict=True,
            )
        ]


class Lines(Inlet):
    """A stream: each line is a message. An incomplete line, of a message's size at most, is kept here; complete lines
    wait in the kernel, so that epoll reports them. A stream has no stamps: its messages count as sent when they are
    read.
    """

    def __init__(self, sock: socket.socket, uid: int | None, clocks: Clocks) -> None:
        super().__init__(sock, uid, clocks)
        self._begun = b""

    def receive(self, clocks: Clocks) -> Message | None:
        while True:
            try:
                end = self.sock.recv(MAX_MESSAGE_BYTES, socket.MSG_PEEK).find(b"\n") + 1
                data, ancillary, _, _ = self.sock.recvmsg(end or MAX_MESSAGE_BYTES, _ANCILLARY_BYTES)
            except BlockingIOError:
                return None
            except ConnectionError as error:
                raise Ended from error
            self._begun += data
            if not self._begun:
                raise Ended
            if end or not data or len(self._begun) > MAX_MESSAGE_BYTES:  # not data: it ended within a line
                line, self._begun = self._begun, b""
                whole, read_ns = end > 0 and len(line) <= MAX_MESSAGE_BYTES, time.clock_gettime_ns(time.CLOCK_BOOTTIME)
                return Message(line, whole, *_sender(ancillary), read_ns, read_ns)


class Senders:
    """datagrams: a socket, or None. listeners: listening for SOCK_SEQPACKET and for SOCK_STREAM. All with SO_PASSCRED.

    counts: refused connections, and messages lost with them.
    """

    def __init__(self, datagrams: socket.socket | None, *listeners: socket.socket) -> None:
        self._epoll = select.epoll()
        self._queues: dict[int, Inlet] = {}
        self._places = Places(CONNECTIONS)
        self._round, self.exhausted = 0, True
        self.counts: Counter[str] = Counter()
        if datagrams is not None:
            self._add(Datagrams(datagrams, read_clocks()))
        self._listeners = [Listener(self._epoll, listener) for listener in listeners]

    def fileno(self) -> int:
        """Readable when something waits."""
        return self._epoll.fileno()

    def end(self) -> None:
        """Later senders get EPIPE or are refused. Waiting messages can still be read, also those of
        connected senders.
        """
        for listener in self._listeners:
            listener.shut()
        while self._accept():
            pass
        for queue in self._queues.values():
            with contextlib.suppress(OSError):  # the peer has closed it
                queue.sock.shutdown(socket.SHUT_RD)

    def receive(self, most: int) -> Iterator[Message]:
        """Waiting messages, at most ``most``, in rounds: some of each user's, then a new poll. ``exhausted``: there are
        no more.
        """
        self.exhausted = False
        self._accept()
        clocks, left = read_clocks(), most
        while left > 0 and not self.exhausted:
            self.exhausted = True  # until a queue has something: a socket that was shut down stays readable
            for queues in self._ready():
                queue, allowed = queues[self._round % len(queues)], min(_QUANTUM, left)
                if isinstance(queue, Datagrams):
                    some = queue.receive_some(clocks, allowed)
                    left, self.exhausted = left - len(some), self.exhausted and not some
                    yield from some
                    continue
                try:
                    while allowed and (message := queue.receive(clocks)) is not None:
                        allowed, left, self.exhausted = allowed - 1, left - 1, False
                        yield message
                except Ended:
                    self._leave(queue)
                    self.exhausted = False

    def _ready(self) -> list[list[Inlet]]:
        """Non-empty queues by user. The first user, and the first queue of each, rotate from round to round."""
        users: dict[int | None, list[Inlet]] = {}
        for fd, _ in self._epoll.poll(0):
            queue = self._queues.get(fd)
            if queue is not None:
                users.setdefault(queue.uid, []).append(queue)
        self._round += 1
        first = self._round % len(users) if users else 0
        return [*users.values()][first:] + [*users.values()][:first]

    def _accept(self) -> bool:
        """Accepts some of the waiting clients; False if none is left."""
        return sum(self._accept_by(listener) for listener in self._listeners) > 0

    def _accept_by(self, listener: Listener) -> bool:
        for _ in range(_ACCEPTED):
            sock = listener.accept()
            if sock is None:
                return False
            uid = peer(sock)[1]
            queue: Inlet
            if sock.type == socket.SOCK_STREAM:
                queue = Lines(sock, uid, read_clocks())
            else:
                stamp(sock)
                queue = Inlet(sock, uid, read_clocks())
            if self._places.refusal(uid):
                self.counts["refused"] += 1
                self.counts["unread"] += _waiting(queue)
                sock.close()
            else:
                self._places.take(uid)
                self._add(queue)
        return True

    def _add(self, queue: Inlet) -> None:
        self._queues[queue.sock.fileno()] = queue
        self._epoll.register(queue.sock, select.EPOLLIN)

    def _leave(self, queue: Inlet) -> None:
        assert queue.uid is not None
        self._places.give_back(queue.uid)
        self._queues.pop(queue.sock.fileno(), None)
        queue.sock.close()

    def state(self) -> dict[str, int]:
        """For ``status``."""
        deafened = sum(listener.deafened for listener in self._listeners)
        return {
            "connections": self._places.used,
            **{name: self.counts[name] for name in ("refused", "unread")},
            "no_descriptor": deafened,
        }

    def close(self) -> None:
        for queue in self._queues.values():
            queue.sock.close()
        for listener in self._listeners:
            listener.close()
        self._epoll.close()


def _waiting(queue: Inlet) -> int:
    """Counts the messages that are lost with the connection."""
    count, clocks = 0, read_clocks()
    try:
        queue.sock.shutdown(socket.SHUT_RD)
        while queue.receive(clocks) is not None:
            count += 1
    except (Ended, OSError):
        pass
    return count


def _sender(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, int]:
    """The sender's pid and uid; the pid is unknown in a pid namespace that is not visible from here.

    The buffer for ancillary data has room for these and the stamp only: the kernel closes descriptors that a sender
    attaches.
    """
    for level, kind, data in ancillary:
        if level == _SOCKET_LEVEL and kind == _SENT_BY:
            pid, uid, _ = _CREDENTIALS.unpack(data)
            return pid or NULL_I64, uid
    return NULL_I64, NULL_I64
