"""The agent's side of the helper (agent/kernel/helper.py): requests with numbers and deadlines; the loop takes the
answers.

One request is under way at a time. A request that takes longer than DEADLINE_S fails, and its late answer is dropped.
Until that answer the helper is ``silent`` and every request fails at once: a user's file or process may hold it up, or
it was stopped.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agent.common.fairness import UpperBound
from agent.kernel import helper
from agent.kernel.detach import close_aside
from agent.kernel.steps import BlockedError, Done, Steps, Wait, at_once
from agent.posix.child import Child
from agent.posix.supervisor import Forked, OfChild, Supervised, how

DEADLINE_S = 2.0
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "processes",
        "time for the privileged helper to answer",
        DEADLINE_S,
        "the request fails",
        "`status` (`helper`), stderr",
        "s",
    ),
)
END_S = 1.0
#: For requests that the loop waits for: helper and kernel usually take 0.1 ms.
_AT_ONCE_S, _BUSY_S = 0.1, 0.01


@dataclass
class _Request:
    operation: int
    pid: int = 0
    name: bytes = b""
    offsets: list[int] = field(default_factory=list)
    flags: int = 0
    fds: list[int] = field(default_factory=list)

    def packed(self, number: int) -> bytes:
        padded = [*self.offsets, *[0] * (helper.MAX_OFFSETS - len(self.offsets))]
        return helper.REQUEST.pack(number, self.operation, self.pid, len(self.offsets), self.flags, self.name, *padded)


class _Sent(NamedTuple):
    """The request that is under way."""

    number: int
    deadline_s: float
    done: Done
    operation: int


class Helper(OfChild):
    """``alive`` is False once the helper has ended. ``silent`` is True while it does not answer. ``late`` counts missed
    deadlines. ``took_s``: how long it worked on the last answer.

    Waits are resumed with descriptors or OSError: TimeoutError for a deadline, BlockedError behind a late request,
    BrokenPipeError if the helper has ended.
    """

    def __init__(self, sock: socket.socket, pid: int) -> None:
        sock.setblocking(False)
        self._sock, self.pid, self.late = sock, pid, 0
        self.child = Supervised(
            "helper", "opens files of other processes", ends_s=END_S, meanwhile="no new uprobes are attached"
        )
        self.child.adopt(Forked(pid))  # its socket stays open after its end, since the loop polls it
        self.took_s = 0.0
        self._number = 0
        self._queue: deque[tuple[_Request, Done]] = deque()
        self._sent: _Sent | None = None
        self._answers: list[tuple[Done, Any, OSError | None]] = []

    def opening(self, pid: int, what: str) -> Wait:
        """A read-only descriptor of ``maps``, ``spaces``, ``linker-cache``, ``exe``, ``root:PATH`` or ``map:RANGE`` of
        a process (the last three only for executables and libraries).
        """
        name = os.fsencode(what)
        if len(name) > 255:
            return _failing(OSError(errno.ENAMETOOLONG, what))
        return self._send_request(_Request(helper.OPEN_PROC, pid, name), lambda fds: fds[0])

    def attaching(
        self, program_fd: int, file_fd: int, offsets: list[int], ret: bool = False, pid: int = 0
    ) -> Steps[list[int]]:
        """Attaches a uprobe (or uretprobe) at each file offset, for all processes or for one (for the kernel see
        ``attach_uprobe``). Closing a returned descriptor detaches it.
        """
        links: list[int] = []
        try:
            for at in range(0, len(offsets), helper.MAX_OFFSETS):
                part = offsets[at : at + helper.MAX_OFFSETS]
                request = _Request(
                    helper.ATTACH_UPROBE, pid, offsets=part, flags=helper.RETURN_PROBE * ret, fds=[program_fd, file_fd]
                )
                links += yield self._send_request(request, lambda fds: fds)
        except OSError:
            close_aside(links)
            raise
        return links

    def digesting(self, fds: list[int]) -> Wait:
        """A digest of the first file's content and of parts of the others, equal for copies. OSError if a file is too
        large or unreadable.
        """
        return self._send_request(_Request(helper.DIGEST, fds=fds), lambda digest: digest)

    def attach_raw_tracepoints(self, program_fds: list[int], names: list[str]) -> list[int]:
        """Attaches programs to on-demand tracepoints (each to its own if the name is empty), all of them or none.
        Closing a returned descriptor detaches its program. Raises OSError, at once if the helper is busy.
        """
        return self._now(_Request(helper.ATTACH_RAW_TP, name=",".join(names).encode(), fds=program_fds))

    def cgroup_path(self, number: int) -> str:
        """The path of the cgroup with this id. Raises OSError, at once if the helper is busy; ESTALE if it is gone."""
        fd = self._now(_Request(helper.OPEN_CGROUP, offsets=[number]))[0]
        try:
            return os.readlink(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)

    def runtime_file(self, number: int, container_id: str) -> int:
        """A read-only descriptor of a file of a container's runtime (``RUNTIME_FILES[number]``). Raises OSError, at
        once if the helper is busy; ENOENT if this runtime has no such container.
        """
        return self._now(_Request(helper.OPEN_RUNTIME, name=container_id.encode(), offsets=[number]))[0]

    def opening_settings(self) -> Wait:
        """A read-only descriptor of the settings, if they are a regular file of root; user tickscope need not be able
        to read it.
        """
        return self._send_request(_Request(helper.OPEN_SETTINGS), lambda fds: fds[0])

    def restrict(self) -> None:
        """Makes it drop CAP_SYS_ADMIN, which it does not need if uprobes are attached by links."""
        self._now(_Request(helper.RESTRICT), DEADLINE_S)

    @property
    def busy(self) -> bool:
        """Whether an answer is due, possibly a late one."""
        return self.silent or bool(self._sent or self._queue or self._answers)

    def fds(self) -> list[int]:
        return [self._sock.fileno()]

    def pump(self) -> None:
        """Takes an answer, and fails requests past their deadline."""
        self._receive()
        answers, self._answers = self._answers, []
        for done, answer, error in answers:
            done(answer, error)
        if self._sent is not None and time.monotonic() > self._sent.deadline_s:
            self._give_up()
        self._send_next()

    def close(self) -> None:
        """Ends the helper, even during a request: the probes belong to this process. Waits for END_S at most, since the
        kernel may finish a call first.
        """
        self.child.close(kill=True)
        self._sock.close()

    def _send_request(self, request: _Request, value: Callable[[Any], object]) -> Wait:
        def wait(done: Done) -> None:
            refusal = self._refusal()
            if refusal is not None:
                done(None, refusal)
                return
            self._queue.append((request, lambda answer, error: done(None if error else value(answer), error)))
            self._send_next()

        return wait

    def _refusal(self) -> OSError | None:
        if not self.alive:
            return BrokenPipeError(errno.EPIPE, "the helper is gone")
        return BlockedError(errno.ETIMEDOUT, "the helper does not answer") if self.silent else None

    def _send_next(self) -> None:
        while self._queue and self._sent is None and not self.silent and not self._answers:
            request, done = self._queue.popleft()
            try:
                self._send(request, done)
            except OSError as error:  # it has ended, or a descriptor was closed meanwhile
                if error.errno in (errno.EPIPE, errno.ECONNRESET):
                    self._gone()
                done(None, error)

    def _send(self, request: _Request, done: Done) -> None:
        self._number += 1
        helper.send(self._sock, request.packed(self._number), request.fds)
        self._sent = _Sent(self._number, time.monotonic() + DEADLINE_S, done, request.operation)

    def _receive(self) -> None:
        while self.alive:
            try:
                data, fds = helper.receive(self._sock, helper.REPLY.size)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if len(data) != helper.REPLY.size:
                self._gone()
                return
            number, status, digest = helper.REPLY.unpack(data)
            self.child.silent = False
            if self._sent is None or self._sent.number != number:
                close_aside(fds)  # late: the request has failed already
                continue
            self.took_s = time.monotonic() - (self._sent.deadline_s - DEADLINE_S)
            done, operation, self._sent = self._sent.done, self._sent.operation, None
            if operation not in (helper.RESTRICT, helper.DIGEST) and not fds:
                status = status or errno.EMFILE  # the kernel drops descriptors for which there is no room
            self._answers.append(
                (
                    done,
                    digest if operation == helper.DIGEST else fds,
                    OSError(status, os.strerror(status)) if status else None,
                )
            )

    def _gone(self) -> None:
        code = self.child.process.poll() if self.child.process is not None else None
        self.child.fail("it closed its socket" if code is None else how(code))
        self._fail_all(lambda: BrokenPipeError(errno.EPIPE, "the helper is gone"))
        self._spare = socket.socketpair()
        os.dup2(
            self._spare[0].fileno(), self._sock.fileno(), inheritable=False
        )  # never readable: a poller does not spin

    def _give_up(self) -> None:
        self.child.silent, self.late, self.took_s = True, self.late + 1, DEADLINE_S
        sent, self._sent = self._sent, None
        if sent is not None:
            sent.done(None, TimeoutError(errno.ETIMEDOUT, f"the helper did not answer within {DEADLINE_S:.0f} s"))
        self._fail_all(lambda: BlockedError(errno.ETIMEDOUT, "the helper does not answer"))

    def _fail_all(self, error: Callable[[], OSError]) -> None:
        waiting = [self._sent.done] if self._sent is not None else []
        waiting += [done for _, done in self._queue]
        self._sent = None
        self._queue.clear()
        for done in waiting:
            done(None, error())

    def _now(self, request: _Request, limit_s: float = _AT_ONCE_S) -> list[int]:
        """A quick request whose answer is waited for. Answers to other requests are handed out at the next ``pump``."""
        busy = time.monotonic() + _BUSY_S
        while self._sent is not None and time.monotonic() < busy:
            self._await(busy)
        refusal = self._refusal()
        if refusal is not None:
            raise refusal
        if self._sent is not None:
            raise BlockingIOError(errno.EAGAIN, "the helper is busy")

        def marker(fds: list[int], error: Exception | None) -> None:
            """Identifies this request."""

        try:
            self._send(request, marker)
        except (BrokenPipeError, ConnectionResetError):
            self._gone()
            raise
        end = time.monotonic() + limit_s
        while self._sent is not None and time.monotonic() < end:
            self._await(end)
        found = next((one for one in self._answers if one[0] is marker), None)
        if found is None:
            if self.alive:
                self._give_up()
            raise self._refusal() or OSError(errno.EIO, "no answer")
        self._answers.remove(found)
        if found[2] is not None:
            raise found[2]
        fds: list[int] = found[1]
        return fds

    def _await(self, end_s: float) -> None:
        waiting = select.poll()
        waiting.register(self._sock, select.POLLIN)
        waiting.poll(max(1, int((end_s - time.monotonic()) * 1000)))
        self._receive()


def start(child: Child, uid: int, gid: int, settings: str) -> Helper:
    """Makes a child that runs ``helper.serve`` the helper, as that user. settings: the path of their file. Raises
    OSError.
    """
    child[0].send(helper.BEGIN.pack(uid, gid) + os.fsencode(settings))
    return Helper(*child)


def _failing(error: OSError) -> Wait:
    def fail() -> int:
        raise error

    return at_once(fail)
