"""The intake's sockets, read fairly: each user with connections gets as much as any other, and so do all senders of
datagrams together.

A datagram socket is one queue: a sender that fills it blocks the others. A connection (SOCK_SEQPACKET; SOCK_STREAM for
Java, Node and Lua, which have no other) is a queue of its sender's own, so no other sender fills it, and no user can
have all connections (agent/common/fairness.py).

Each user but root has a budget of processor time for malformed messages. While a user is over it, their messages are
read and counted, but not parsed.
"""

from __future__ import annotations

import contextlib
import ctypes as ct
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from agent.columns import NULL_I64
from agent.common.fairness import Budget, Places, UpperBound
from agent.limiters.arrival import STAMP_BYTES, STAMP_TYPE, Arrival, Clocks, read_clocks, stamp
from agent.limiters.decision import MAX_VALUES
from agent.posix.listener import Listener, peer

MAX_MESSAGE_BYTES = 8192
CONNECTIONS = 256
#: Processor time per second for malformed messages, ns: 1 % of a core per user.
MALFORMED_NS_PER_S = 40_000_000
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
        "refused; messages already sent on the connection are lost",
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
        "message to the intake, or line of `intake.stream.sock`; commas and opening brackets in it",
        f"{MAX_MESSAGE_BYTES:,} bytes; {MAX_VALUES}",
        "rejected as malformed",
        "`loss` (`intake`)",
    ),
    UpperBound(
        "report",
        "CPU time for malformed messages to the intake per second",
        MALFORMED_NS_PER_S / 1e6,
        "the user's next messages are not parsed; root has no such limit",
        "`status` (`bounds`), `probe_status` row `intake`, `loss` (`intake uid N`)",
        "ms",
        shared=True,
    ),
)


_NO_WAIT = int(socket.MSG_DONTWAIT)
#: struct iovec, struct mmsghdr, and a control message of credentials or a stamp (include/linux/socket.h), on LP64.
_IOVEC = np.dtype([("base", "<u8"), ("bytes", "<u8")])
#: Level and type of a control message, as one number.
_SENT_BY_KIND, _STAMP_KIND = (_SOCKET_LEVEL | kind << 32 for kind in (_SENT_BY, STAMP_TYPE))
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
        "names": ["kind", "pid", "uid", "seconds", "ns"],
        "formats": ["<i8", "<i4", "<u4", "<i8", "<i8"],
        "offsets": [8, 16, 20, 16, 24],
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

    def discard(self, clocks: Clocks, most: int) -> int:
        """Reads at most so many messages and returns their number. Raises Ended."""
        for count in range(most):
            try:
                data, _, flags, _ = self.sock.recvmsg(1)
            except BlockingIOError:
                self._arrival.emptied(clocks)
                return count
            except ConnectionError as error:
                raise Ended from error
            if not data and not flags:  # an empty message has credentials, for which there is no room: MSG_CTRUNC
                raise Ended
        return most


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

    def receive_some(self, clocks: Clocks, most: int, unparsed: Collection[int]) -> tuple[list[Message], Counter[int]]:
        """At most ``most`` messages, and _QUANTUM. Messages of the uids ``unparsed`` are only counted, by uid. clocks:
        read before, in this round.
        """
        self._headers["control_bytes"] = 2 * _CONTROL.itemsize
        self._control[:] = 0
        n = self._libc.recvmmsg(
            self.sock.fileno(), ct.c_void_p(self._headers.ctypes.data), min(most, _QUANTUM), _NO_WAIT, None
        )
        if n <= 0:  # no message, or the socket is shut down
            self._arrival.emptied(clocks)
            return [], Counter()
        read_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        headers, control = self._headers[:n], self._control[:n]
        stamps, credentials = control[:, 0], control[:, 1]  # in the order of unix_dgram_recvmsg (net/unix/af_unix.c)
        sent_by = credentials["kind"] == _SENT_BY_KIND
        uids: list[int] = np.where(sent_by, credentials["uid"].astype(np.int64), NULL_I64).tolist()
        counts = Counter({its_uid: uids.count(its_uid) for its_uid in unparsed})
        if counts.total() == n:
            return [], counts
        pids = np.where(sent_by, credentials["pid"], 0).tolist()
        stamp_ns = np.where(stamps["kind"] == _STAMP_KIND, stamps["seconds"] * 1_000_000_000 + stamps["ns"], 0)
        sent_ns = self._arrival.all_sent_ns(stamp_ns, read_ns, clocks).tolist()
        if n < most:
            self._arrival.emptied(clocks)
        messages = [
            Message(self._data[at : at + size], not flags & _TRUNCATED, its_pid or NULL_I64, its_uid, its_ns, read_ns)
            for at, size, flags, its_pid, its_uid, its_ns in zip(
                range(0, n * MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES),
                headers["bytes"].tolist(),
                headers["flags"].tolist(),
                pids,
                uids,
                sent_ns,
                strict=True,
            )
            if its_uid not in unparsed
        ]
        return messages, counts


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

    def discard(self, clocks: Clocks, most: int) -> int:
        """The ends of lines in the next ``most`` * MAX_MESSAGE_BYTES bytes."""
        try:
            data = self.sock.recv(most * MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return 0
        except ConnectionError as error:
            raise Ended from error
        if not data:
            raise Ended
        self._begun = data[data.rfind(b"\n") + 1 :][: MAX_MESSAGE_BYTES + 1]
        return max(1, data.count(b"\n"))


class Senders:
    """datagrams: a socket, or None. listeners: listening for SOCK_SEQPACKET and for SOCK_STREAM. All with SO_PASSCRED.

    counts: refused connections, and messages lost with them. unparsed: messages that were not parsed, by uid. received:
    messages read, with these.
    """

    def __init__(self, datagrams: socket.socket | None, *listeners: socket.socket) -> None:
        self._epoll = select.epoll()
        self._queues: dict[int, Inlet] = {}
        self._places = Places(CONNECTIONS)
        self._round, self.exhausted = 0, True
        self.received = 0
        self.counts: Counter[str] = Counter()
        self.unparsed: Counter[int] = Counter()
        self._budget = Budget(MALFORMED_NS_PER_S, MALFORMED_NS_PER_S, root=False)
        self._over_budget: set[int] = set()
        if datagrams is not None:
            self._add(Datagrams(datagrams, read_clocks()))
        self._listeners = {listener.fileno(): Listener(self._epoll, listener) for listener in listeners}

    def fileno(self) -> int:
        """Readable when something waits."""
        return self._epoll.fileno()

    def end(self) -> None:
        """Later senders get EPIPE or are refused. Waiting messages can still be read, also those of
        connected senders.
        """
        for listener in self._listeners.values():
            listener.shut()
            while self._accept(listener):
                pass
        for queue in self._queues.values():
            with contextlib.suppress(OSError):  # the peer has closed it
                queue.sock.shutdown(socket.SHUT_RD)

    def receive(self, most: int) -> list[Message]:
        """Waiting messages, at most ``most``, in rounds: some of each user's, then a new poll. ``exhausted``: there are
        no more.
        """
        messages, clocks, left = list[Message](), read_clocks(), most
        for listener in self._listeners.values():
            if listener.deaf:
                self._accept(listener)
        self.exhausted = False
        while left > 0 and not self.exhausted:
            self.exhausted = True  # until a queue has something: a socket that was shut down stays readable
            self._settle()
            for queues in self._ready():
                queue, allowed = queues[self._round % len(queues)], min(_QUANTUM, left)
                if isinstance(queue, Datagrams):
                    some, unparsed = queue.receive_some(clocks, allowed, self._over_budget)
                    self._count(unparsed)
                    messages += some
                    read, left = len(some) + unparsed.total(), left - len(some) - unparsed.total()
                    self.exhausted &= read < allowed
                    continue
                try:
                    if queue.uid in self._over_budget:
                        read = queue.discard(clocks, allowed)
                        self._count({queue.uid: read})
                        left, self.exhausted = left - read, self.exhausted and not read
                        continue
                    while allowed and (message := queue.receive(clocks)) is not None:
                        allowed, left, self.exhausted = allowed - 1, left - 1, False
                        messages.append(message)
                except Ended:
                    self._leave(queue)
                    self.exhausted = False
        self.received += most - left
        return messages

    def charge(self, uid: int, spent_ns: int) -> None:
        """Takes processor time for a malformed message from its user's budget."""
        now_ns = time.monotonic_ns()
        self._budget.spend(uid, spent_ns, now_ns)
        if self._budget.left(uid, now_ns) <= 0:
            self._over_budget.add(uid)

    def refuses(self, uid: int) -> bool:
        """Whether a message that was received is not to be parsed; it is counted then."""
        if uid in self._over_budget:
            self._count({uid: 1})
            return True
        return False

    def _settle(self) -> None:
        if self._over_budget:
            now_ns = time.monotonic_ns()
            self._over_budget = {uid for uid in self._over_budget if self._budget.left(uid, now_ns) <= 0}

    def _count(self, unparsed: Mapping[int, int]) -> None:
        self.unparsed.update({uid: count for uid, count in unparsed.items() if count})
        self.counts["unparsed"] += sum(unparsed.values())

    def _ready(self) -> list[list[Inlet]]:
        """Non-empty queues by user. The first user, and the first queue of each, rotate from round to round."""
        users: dict[int | None, list[Inlet]] = {}
        for fd, _ in self._epoll.poll(0):
            queue = self._queues.get(fd)
            if queue is not None:
                users.setdefault(queue.uid, []).append(queue)
            elif fd in self._listeners and self._accept(self._listeners[fd]):
                self.exhausted = False
        self._round += 1
        first = self._round % len(users) if users else 0
        return [*users.values()][first:] + [*users.values()][:first]

    def _accept(self, listener: Listener) -> bool:
        """Accepts some of the waiting clients; whether there were any."""
        for n in range(_ACCEPTED):
            sock = listener.accept()
            if sock is None:
                return n > 0
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
        deafened = sum(listener.deafened for listener in self._listeners.values())
        return {
            "connections": self._places.used,
            **{name: self.counts[name] for name in ("refused", "unread", "unparsed")},
            "no_descriptor": deafened,
        }

    def close(self) -> None:
        for queue in self._queues.values():
            queue.sock.close()
        for listener in self._listeners.values():
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
