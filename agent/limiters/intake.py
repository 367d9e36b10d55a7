"""The intake: limiter decisions that programs report, one JSON object per message, on Unix sockets.

``intake.sock`` takes datagrams, ``intake.seq.sock`` connections (SOCK_SEQPACKET), each with a queue of its own, so that
one sender cannot block others (agent/limiters/senders.py). ``intake.stream.sock`` takes stream connections with one
message per line, for languages without other Unix sockets. The kernel identifies the sender (SCM_CREDENTIALS).

Beyond the members of the contract, a program may send the thread of the decision (``tid``, of gettid()), so that its
system calls are found, and the time (``t_ns``, its CLOCK_BOOTTIME, which differs from the host's in a time namespace)
if it reports later than it decides. Waits inside a decision are kept for two seconds (agent/correlate/reported.py). A
program sends the number of messages that it could not send as ``dropped`` with the next one; this becomes a ``loss``
row.

A full queue blocks a blocking sender, and gives a non-blocking one EAGAIN (unix(7)), so the kernel drops nothing.
Senders must not block: deploy/examples/report.py. The number of datagrams that fit is fixed when the socket is created.

A decision's time is when it was sent, however late the agent reads it.

An object with a ``message`` and without a ``limiter`` is no decision: a consumer reports a message of a queue
(``Messages``).
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from agent.batch import Batch, Loss, losses, make
from agent.clock import timens
from agent.columns import NULL_I64
from agent.common.copies import pick, together
from agent.common.fairness import UpperBound
from agent.contracts import Due, Finishing, Pending, Readable, Stating, Waking
from agent.limiters.arrival import stamp
from agent.limiters.decision import (
    FLOATS,
    IDS,
    INTEGERS,
    MOST_DROPPED,
    NAMES,
    TABLE,
    Columns,
    Decoder,
    Malformed,
    use_salt,
)
from agent.limiters.naming import Names
from agent.limiters.senders import CONNECTIONS, Message, Senders
from agent.limiters.settings import read_salt
from agent.limiters.threads import Threads
from agent.posix.rundir import RunDirectory

QUEUE_LENGTH = 4096
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "report",
        "datagrams waiting in `intake.sock`, all senders together",
        QUEUE_LENGTH,
        "the sender gets EAGAIN, or blocks",
        "`loss` (`intake senders`)",
        setting="net.unix.max_dgram_qlen, if the agent may not raise it",
    ),
)
#: Names of reached bounds (agent/service/bounds.py).
REASONS = {
    "refused": "connections refused, because their user had its share",
    "threads_unread": "decisions whose thread is not known, because there was no time to look for it",
    "no_descriptor": "connections not accepted for lack of descriptors",
    "unchecked": "messages not checked for duplicates, because too many users or queues reported some",
    "unparsed": "messages not parsed, because their user sent too many malformed ones",
}
#: Messages that the busiest sender may have in flight at the next read (its SO_SNDBUF holds 166 datagrams of 1 KB), and
#: the shortest and longest time until then.
_IN_FLIGHT, _SOON_NS, _LATE_NS = 80, 10_000_000, 70_000_000
_MODE = 0o666
_QLEN_SYSCTL = Path("/proc/sys/net/unix/max_dgram_qlen")
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_IDENTITY_NS = 1_000_000_000
_LOSS_INTERVAL_NS = MESSAGES_NS = 1_000_000_000
#: ``source`` of the ``loss`` rows: invalid messages, decisions that senders dropped, messages lost with closed
#: connections. Messages that were not parsed have their user: ``intake uid N``.
_MALFORMED, _DROPPED, _UNREAD = "intake", "intake senders", "intake connections"
_COLUMNS = (
    "t_ns",
    "pid",
    "proc_start_ns",
    "comm",
    "reporter_uid",
    "limiter_id",
    "result",
    "key",
    "unlimited",
    *FLOATS,
    *INTEGERS,
    *IDS,
    *NAMES,
)
_UNKNOWN = {name: TABLE.by_name[name].null for name in _COLUMNS}


class Identity(NamedTuple):
    """A process: its start in CLOCK_BOOTTIME ns, its command name, and how far its CLOCK_BOOTTIME is ahead of the
    host's; NULL_I64 and b"" if it has ended.
    """

    start_ns: int
    comm: bytes
    ahead_ns: int


class Messages(Protocol):
    """Takes the messages that consumers report (agent/queues/message_reports.py)."""

    unchecked: int

    def add(self, members: dict[str, Any], consumer: tuple[int, int, bytes], uid: int, t_ns: int) -> None:
        """consumer: pid, start, command name. Raises ValueError for an invalid report."""

    def batches(self, now_ns: int, interval_ns: int) -> Iterator[Batch]:
        """Rows, if messages came for this long."""


_NOBODY = Identity(NULL_I64, b"", NULL_I64)


def process_identity(pid: int) -> Identity:
    """From /proc/PID/stat (proc(5)), for any process of the host.

    The start is cut to a clock tick (10 ms). Probes report it in ns, so both must be cut alike before a comparison.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return _NOBODY
    end = text.rindex(b")")
    try:
        ahead_ns = timens.of(pid).boottime_ns
    except (OSError, ValueError):
        ahead_ns = NULL_I64
    return Identity(int(text[end + 2 :].split()[19]) * _TICK_NS, text[text.index(b"(") + 1 : end], ahead_ns)


class IntakeSockets:
    """Creates the sockets, which needs privilege; reading them does not.

    The kernel queues only net.unix.max_dgram_qlen (10 by default) datagrams, and reads that setting when a socket is
    created. It is raised for that moment if permitted.
    """

    def __init__(self, queue_length: int = QUEUE_LENGTH) -> None:
        self._datagrams = _with_queue(queue_length)

    def datagrams(self) -> socket.socket:
        """The socket for datagrams."""
        return _with_timestamps(self._datagrams)

    @staticmethod
    def listener() -> socket.socket:
        """The socket for connections. Raises OSError."""
        return _with_timestamps(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))

    @staticmethod
    def lines() -> socket.socket:
        """The socket for stream connections. Raises OSError."""
        return _with_timestamps(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))


def bind(directory: RunDirectory, key_salt: str = "", queue_length: int = QUEUE_LENGTH) -> tuple[socket.socket, ...]:
    """The datagram socket and the listening sockets, in the run directory, open to all users. Also reads the salt of
    keys, which only the privileged start may read. Raises AgentError and OSError.
    """
    use_salt(read_salt(key_salt))
    make = IntakeSockets(queue_length)
    listener = directory.bind("intake.seq.sock", _MODE, make.listener, CONNECTIONS)
    lines = directory.bind("intake.stream.sock", _MODE, make.lines, CONNECTIONS)
    return directory.bind("intake.sock", _MODE, make.datagrams), listener, lines


class Intake(Stating, Finishing, Waking, Readable, Due, Pending):
    """Reads decisions from sockets of ``IntakeSockets``; a ``Source``, see agent.contracts. Between two beats messages
    are only received, so that no queue fills; at the beat all of them are parsed at once.

    keys: ``hashed`` stores 8 bytes of BLAKE2b as hex, ``clear`` the key itself, as in its column. max_messages: most
    messages per drain; the rest waits until ``due_ns``. names: limiter ids by the limiters' own names.
    """

    name = "intake"

    def __init__(
        self,
        datagrams: socket.socket | None,
        *listeners: socket.socket,
        keys: str = "hashed",
        max_messages: int = 512,
        names: Mapping[str, object] | None = None,
        messages: Messages | None = None,
    ) -> None:
        self._messages = messages
        self.senders = Senders(datagrams, *listeners)
        self._max_messages, self._decoder = max_messages, Decoder(keys, Names(names).called)
        self._identities: dict[int, tuple[int, Identity]] = {}
        self._threads = Threads()
        self._lost: Counter[str] = Counter()
        self._reported: Counter[str] = Counter()
        self._reported_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._due_ns = self._read_ns = 0
        self._received: list[Message] = []
        self._waiting = True  # no message waits until ``_first`` is readable
        self._first = select.epoll()
        self._first.register(self.senders.fileno(), select.EPOLLIN | select.EPOLLONESHOT)

    def store_keys(self, keys: str) -> None:
        """Sets how keys are stored from now on."""
        self._decoder.store_keys(keys)

    def fds(self) -> list[int]:
        """Readable when a message comes after a drain that found none; while messages come, ``due_ns`` gives the next
        drain.
        """
        return [self._first.fileno()]

    @property
    def due_ns(self) -> int:
        """The next read while messages come, before the buffer of the busiest sender is full."""
        return self._due_ns

    def pending(self, now_ns: int) -> bool:
        """While messages come."""
        return not self._waiting

    def woken(self, now_ns: int) -> Iterator[Batch]:
        self._receive(now_ns)
        if len(self._received) >= self._max_messages:
            yield from self._parse()

    def drain(self, now_ns: int) -> Iterator[Batch]:
        self._receive(now_ns)
        yield from self._parse()
        if self._messages is not None:
            yield from self._messages.batches(now_ns, MESSAGES_NS)
        yield from self._loss(now_ns, _LOSS_INTERVAL_NS)

    def finish(self, now_ns: int, wait: Callable[[float], None]) -> Iterator[Batch]:
        """Reads all waiting messages at the end of a run. Later senders get EPIPE, so nothing is lost unseen. The
        queues' lengths bound the number.
        """
        self.senders.end()
        self.senders.exhausted = False
        while not self.senders.exhausted:
            self._read()
            yield from self._parse()
        yield from self._parse()
        if self._messages is not None:
            yield from self._messages.batches(now_ns, 0)
        yield from self._loss(time.clock_gettime_ns(time.CLOCK_BOOTTIME), 0)

    def _receive(self, now_ns: int) -> None:
        if self._waiting and not self._first.poll(0):
            return
        self._waiting = False
        before, passed_ns = self.senders.received, min(now_ns - self._read_ns, _LATE_NS)
        most, self._read_ns = self._read(), now_ns
        if self.senders.received > before:
            rest_ns = passed_ns * _IN_FLIGHT // most if most else _LATE_NS
            self._due_ns = now_ns + min(max(rest_ns, _SOON_NS), _LATE_NS)
        else:
            self._due_ns, self._waiting = 0, True
            self._first.modify(self.senders.fileno(), select.EPOLLIN | select.EPOLLONESHOT)

    def _read(self) -> int:
        """Takes at most ``max_messages``; returns how many the busiest sender sent. Senders are looked up now: they may
        end.
        """
        messages = self.senders.receive(self._max_messages)
        counts = Counter(message.pid for message in messages)
        for pid in counts:
            self._identity(pid, time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        self._received += messages
        return max(counts.values(), default=0)

    def _parse(self) -> Iterator[Batch]:
        """Parses what was received; rows in the order of arrival. Messages with the same members become rows together;
        if one of these is wrong, they are checked one by one.
        """
        received, self._received = self._received, []
        alike: dict[tuple[str, ...], list[tuple[Message, dict[str, Any]]]] = {}
        for message in received:
            if self.senders.refuses(message.uid):
                continue
            began_ns = time.monotonic_ns()
            try:
                if not message.whole:
                    raise Malformed("too long")
                members = self._decoder.read(message.data)
                if self._messages is not None and "message" in members and "limiter" not in members:
                    self._report(self._messages, message, members)
                    continue
                alike.setdefault(tuple(members), []).append((message, members))
            except (ValueError, RecursionError):
                self._malformed(message, began_ns)
        parts = [self._rows(*self._columns(some)) for some in alike.values()]
        if not parts:
            return
        rows = together([rows for _, rows in parts])
        if len(parts) > 1:
            place = {id(message): i for i, message in enumerate(received)}
            rows = pick(rows, np.argsort([place[id(message)] for messages, _ in parts for message in messages]))
        if len(rows):
            yield Batch(TABLE.name, rows)

    def _report(self, messages: Messages, message: Message, members: dict[str, Any]) -> None:
        """A message of a queue. Raises ValueError."""
        dropped = members.get("dropped", 0)
        if type(dropped) is not int or not 0 <= dropped < MOST_DROPPED:
            raise Malformed("dropped")
        at_ns = members.get("t_ns", message.sent_ns)
        if type(at_ns) is not int:
            raise Malformed("t_ns")
        at_ns = self._when(at_ns, message) if "t_ns" in members else at_ns
        who = self._identity(message.pid, message.sent_ns)
        messages.add(members, (message.pid, who.start_ns, who.comm), message.uid, at_ns)
        self._lost[_DROPPED] += dropped

    def _columns(self, some: list[tuple[Message, dict[str, Any]]]) -> tuple[list[Message], Columns]:
        """Decisions with the same members, without those that are malformed."""
        messages = [message for message, _ in some]
        checked = self._decoder.columns([members for _, members in some])
        if checked is not None:
            columns, dropped = checked
            try:
                if "t_ns" in columns:
                    columns["t_ns"] = list(map(self._when, columns["t_ns"], messages))
            except Malformed:
                pass
            else:
                self._lost[_DROPPED] += dropped
                return messages, columns
        return self._one_by_one(some)

    def _one_by_one(self, some: list[tuple[Message, dict[str, Any]]]) -> tuple[list[Message], Columns]:
        messages, rows = list[Message](), list[dict[str, Any]]()
        for message, members in some:
            began_ns = time.monotonic_ns()
            try:
                values, dropped = self._decoder.check(members)
                values["t_ns"] = self._when(values["t_ns"], message) if "t_ns" in values else message.sent_ns
            except ValueError:
                self._malformed(message, began_ns)
                continue
            self._lost[_DROPPED] += dropped
            messages.append(message)
            rows.append(values)
        names = set().union(*rows)
        return messages, {name: [row.get(name, _UNKNOWN[name]) for row in rows] for name in names}

    def _malformed(self, message: Message, began_ns: int) -> None:
        self._lost[_MALFORMED] += 1
        self.senders.charge(message.uid, time.monotonic_ns() - began_ns)

    def _rows(self, messages: list[Message], columns: Columns) -> tuple[list[Message], np.ndarray]:
        identities = [self._identity(message.pid, message.sent_ns) for message in messages]
        columns.setdefault("t_ns", [message.sent_ns for message in messages])
        columns["pid"] = [message.pid for message in messages]
        columns["proc_start_ns"] = [identity.start_ns for identity in identities]
        columns["comm"] = [identity.comm for identity in identities]
        columns["reporter_uid"] = [message.uid for message in messages]
        if "tid" in columns:
            columns["tid"] = [
                self._threads.host(message.pid, identity.start_ns, message.uid, tid, message.sent_ns)
                if tid != NULL_I64
                else tid
                for message, identity, tid in zip(messages, identities, columns["tid"], strict=True)
            ]
        batch = make(TABLE.name, len(messages), source=TABLE.code("source", "socket"), **columns)
        return messages, batch.rows

    def _when(self, reported_ns: int, message: Message) -> int:
        """When the decision was made, host's CLOCK_BOOTTIME: the reported time if its clock is known, else when
        it was sent. Raises Malformed for an impossible time: outside of the process's life, or in the future.
        """
        identity = self._identity(message.pid, message.sent_ns)
        if identity.ahead_ns == NULL_I64:
            return message.sent_ns
        made_ns = reported_ns - identity.ahead_ns
        if not identity.start_ns <= made_ns <= message.read_ns:
            raise Malformed("t_ns")
        return made_ns

    def losses(self) -> dict[str, int]:
        """Invalid messages, and decisions that senders dropped, so far."""
        return {"malformed": self._lost[_MALFORMED], "dropped": self._lost[_DROPPED]}

    def state(self) -> dict[str, int]:
        """For ``status``."""
        unchecked = 0 if self._messages is None else self._messages.unchecked
        return {
            **self.senders.state(),
            **self.losses(),
            "threads_unread": self._threads.skipped_reads,
            "unchecked": unchecked,
        }

    def close(self) -> None:
        self.senders.close()
        self._first.close()

    def _identity(self, pid: int, now_ns: int) -> Identity:
        """Looked up once a second for each pid; the last result stays valid after the process ends."""
        known = self._identities.get(pid)
        if known is not None and now_ns - known[0] < _IDENTITY_NS:
            return known[1]
        if len(self._identities) > 4096:
            self._identities.clear()
        try:
            identity = process_identity(pid)
        except Exception:  # noqa: BLE001 - /proc data of one sender must not lose the others' datagrams
            identity = _NOBODY
        self._identities[pid] = (now_ns, identity)
        return identity

    def _loss(self, now_ns: int, interval_ns: int) -> Iterator[Batch]:
        self._lost[_UNREAD] = self.senders.counts["unread"]
        for uid, count in self.senders.unparsed.items():
            self._lost[f"{_MALFORMED} uid {uid}"] = count
        news = {
            source: count - self._reported[source]
            for source, count in self._lost.items()
            if count > self._reported[source]
        }
        if not news:
            self._reported_ns = now_ns
        elif now_ns - self._reported_ns >= interval_ns:
            yield losses("intake", *(Loss(source, count, self._reported_ns, now_ns) for source, count in news.items()))
            self._reported, self._reported_ns = Counter(self._lost), now_ns


def _open_to_all(sock: socket.socket) -> socket.socket:
    """Sets the mode now, since only the socket's creator may."""
    os.fchmod(sock.fileno(), _MODE)
    return sock


def _with_timestamps(sock: socket.socket) -> socket.socket:
    """Enables credentials and stamps; sets non-blocking."""
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    if sock.type == socket.SOCK_DGRAM:
        stamp(sock)
    return sock


def _with_queue(length: int) -> socket.socket:
    try:
        before = _QLEN_SYSCTL.read_text()
        if int(before) < length:
            _QLEN_SYSCTL.write_text(str(length))
    except OSError:  # read-only in most containers: then the default length
        before = ""
    try:
        return _open_to_all(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    finally:
        if before and int(before) < length:
            _QLEN_SYSCTL.write_text(before)
