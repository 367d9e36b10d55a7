"""The notice socket's subscribers: sends notices, reads acknowledgements, disconnects subscribers and counts why.

Part of the clock watch, so standard library only. A subscriber may write ``{"ack": ID, "limiter": NAME}``, one JSON
object per line, with a notice's ``id`` or ``t_ns``: it has re-anchored. A subscriber that shuts its writing half down
only listens, and has nothing pending. A subscriber that writes more than a bounded number of lines per notice is
disconnected. No user can take all places (agent/common/fairness.py).
"""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time

from agent.common.fairness import Places, UpperBound
from agent.common.printable import printable
from agent.posix.listener import NO_ROOM, peer

SUBSCRIBERS = 256
#: Unacknowledged notices that are counted per subscriber.
_PENDING = 1024
COUNTS = ("notices", "sent", "acknowledged", "slow", "refused", "noisy", "malformed", "unknown")
_LINE, _CHUNK = 1024, 4096
#: Lines that a subscriber may write: at first, added per notice, and at most.
_CREDIT, _CREDIT_MOST = 64, 512
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "report",
        "subscribers of notices (`notices.sock`)",
        SUBSCRIBERS,
        "refused",
        "`status` (`notices`: `refused`)",
        shared=True,
    ),
    UpperBound(
        "report",
        "unread notices of a subscriber; lines that it sends at once",
        f"its socket buffer; {_CREDIT_MOST} of {_LINE:,} bytes",
        "disconnected",
        "`status` (`notices`: `slow`, `noisy`)",
    ),
)
_REPORT_S = 0.05
_LISTED = 16
#: Delay before it accepts again after running out of descriptors.
_NO_ROOM_S = 0.1


class Subscriber:
    """One connection. waiting: id -> t_ns of its unacknowledged notices. limiter: the last name that it sent. Not a
    dataclass: that would load inspect, 1 MB, into the watch.
    """

    def __init__(self, sock: socket.socket, pid: int, uid: int, comm: str) -> None:
        self.sock, self.pid, self.uid, self.comm = sock, pid, uid, comm
        self.waiting: dict[int, int] = {}
        self.rest, self.credit, self.listens_only, self.limiter = b"", _CREDIT, False, ""

    def oldest(self) -> int:
        return next(iter(self.waiting.values()), 0)


def _subscriber(sock: socket.socket) -> Subscriber:
    pid, uid = peer(sock)
    try:
        with open(f"/proc/{pid}/comm", "rb") as comm:
            return Subscriber(sock, pid, uid, printable(comm.read().strip()))
    except OSError:
        return Subscriber(sock, pid, uid, "")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:48])


class Subscribers:
    """Serves the notice socket. ``send_notice`` may be called from any thread, ``serve`` runs in one.

    listener: non-blocking, listening. report: SOCK_SEQPACKET for the state as JSON, sent on change. counts: start
    values (COUNTS). Raises OSError.
    """

    def __init__(self, listener: socket.socket, report: socket.socket, counts: dict[str, int] | None = None) -> None:
        self._listener, self._report = listener, report
        report.setblocking(False)
        self._by_fd: dict[int, Subscriber] = {}
        self._places = Places(SUBSCRIBERS)
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._counts = {**dict.fromkeys(COUNTS, 0), **(counts or {})}
        self._last_ack: dict[str, object] | None = None
        self._dirty, self._reported = True, 0.0

    @property
    def dropped(self) -> int:
        """Subscribers disconnected so far: too slow, too many, or too many lines."""
        return sum(self._counts[why] for why in ("slow", "refused", "noisy"))

    def send_notice(self, notice: dict[str, object], t_ns: int) -> None:
        """Sends the notice with its ``id`` to all subscribers. Disconnects those with a full buffer. t_ns:
        CLOCK_BOOTTIME of the step.
        """
        with self._lock:
            self._counts["notices"] += 1
            number = self._counts["notices"]
            line = json.dumps({**notice, "id": number}, separators=(",", ":")).encode() + b"\n"
            for fd, one in list(self._by_fd.items()):
                try:
                    sent = one.sock.send(line)
                except OSError as error:
                    self._forget(fd, "slow" if isinstance(error, BlockingIOError) else "")
                    continue
                if sent != len(line):
                    self._forget(fd, "slow")
                    continue
                self._counts["sent"] += 1
                one.credit = min(one.credit + _CREDIT, _CREDIT_MOST)
                if not one.listens_only:
                    one.waiting[number] = t_ns
                    if len(one.waiting) > _PENDING:
                        del one.waiting[next(iter(one.waiting))]
            self._dirty = True
        os.eventfd_write(self._wake, 1)

    def serve(self, until: int) -> None:
        """Accepts, reads acknowledgements and reports until the other end of ``until``, a socket, is closed."""
        for fd in (until, self._listener.fileno(), self._wake):
            self._poll.register(fd, select.POLLIN)
        while True:
            for fd, events in self._poll.poll(self._send_counts()):
                if fd == until:
                    return
                elif fd == self._listener.fileno():
                    self._accept()
                elif fd == self._wake:
                    os.eventfd_read(self._wake)
                else:
                    with self._lock:
                        self._on_readable(fd, events)

    def _send_counts(self) -> float | None:
        """Reports changed counts at a limited rate. Returns how long poll may sleep, in ms."""
        with self._lock:
            if not self._dirty:
                return None
            wait = self._reported + _REPORT_S - time.monotonic()
            if wait > 0:
                return wait * 1000 + 1
            self._dirty, self._reported = False, time.monotonic()
            state = self._state()
        try:
            self._report.send(json.dumps(state).encode())
        except BlockingIOError:  # the agent is busy: try again later
            self._dirty = True
            return _REPORT_S * 1000
        except OSError:
            return None
        return None

    def _state(self) -> dict[str, object]:
        pending = [s for s in self._by_fd.values() if s.waiting]
        pending.sort(key=Subscriber.oldest)
        listed = [
            {"pid": s.pid, "comm": s.comm, "limiter": s.limiter, "pending": len(s.waiting), "since_ns": s.oldest()}
            for s in pending[:_LISTED]
        ]
        return {
            "subscribers": len(self._by_fd),
            "pending": sum(len(s.waiting) for s in pending),
            **self._counts,
            "dropped": self.dropped,
            "waiting": listed,
            "last_ack": self._last_ack,
        }

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            if error.errno in NO_ROOM:
                time.sleep(_NO_ROOM_S)
            return  # else the client closed before it was accepted
        try:
            sock.setblocking(False)
            one = _subscriber(sock)
        except Exception:  # noqa: BLE001 - an error of one subscriber must not end the watch
            sock.close()
            return
        with self._lock:
            self._dirty = True
            if self._places.refusal(one.uid):
                self._counts["refused"] += 1
                sock.close()
                return
            self._places.take(one.uid)
            self._by_fd[sock.fileno()] = one
            self._poll.register(sock, select.POLLIN)  # hang-ups are always reported

    def _forget(self, fd: int, why: str = "") -> None:
        one = self._by_fd.pop(fd)
        self._places.give_back(one.uid)
        self._poll.unregister(fd)
        one.sock.close()
        self._dirty = True
        if why:
            self._counts[why] += 1

    def _on_readable(self, fd: int, events: int) -> None:
        one = self._by_fd.get(fd)
        if one is None:
            return
        try:
            data = one.sock.recv(_CHUNK)
        except BlockingIOError:  # an event of an earlier connection with this descriptor number
            return
        except OSError:
            self._forget(fd)
            return
        if data:
            self._read(fd, one, data)
        elif events & (select.POLLHUP | select.POLLERR):
            self._forget(fd)
        else:
            one.listens_only = self._dirty = True
            one.waiting.clear()
            self._poll.modify(fd, 0)

    def _read(self, fd: int, one: Subscriber, data: bytes) -> None:
        *lines, one.rest = (one.rest + data).split(b"\n")
        if len(one.rest) > _LINE:
            lines.append(one.rest)
            one.rest = b""
        one.credit -= 1
        self._dirty = True
        for line in lines:
            one.credit -= 1
            if one.credit < 0:
                break
            self._line(one, line)
        if one.credit < 0:
            self._forget(fd, "noisy")

    def _line(self, one: Subscriber, line: bytes) -> None:
        try:
            counts = json.loads(line) if len(line) <= _LINE else None
        except (ValueError, RecursionError):
            counts = None
        ack, limiter = (counts.get("ack"), counts.get("limiter", "")) if isinstance(counts, dict) else (None, "")
        if type(ack) is not int or not isinstance(limiter, str):
            self._counts["malformed"] += 1
            return
        number = ack if ack in one.waiting else next((n for n, t in one.waiting.items() if t == ack), None)
        one.limiter = _printable(limiter) or one.limiter
        if number is None:
            self._counts["unknown"] += 1
            return
        took = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - one.waiting.pop(number)
        self._counts["acknowledged"] += 1
        self._last_ack = {"id": number, "pid": one.pid, "comm": one.comm, "limiter": one.limiter, "took_ns": took}
