"""A source whose rows one supervised child process sends."""

from __future__ import annotations

import socket
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from agent.batch import Batch
from agent.contracts import Failing, Owning, Pending
from agent.posix.supervisor import Supervised


class ProcessSource(Failing, Owning, Pending):
    """``process``: the child, with a heartbeat and restarts."""

    process: Supervised

    @abstractmethod
    def received(self, source: socket.socket, now_ns: int) -> Iterator[Batch]:
        """What has come from the child since the last call."""

    @abstractmethod
    def supervise(self, now_ns: int) -> Iterator[Batch]:
        """Called a few times a second: lets ``process`` be checked where one is wanted, and reports on it."""

    def pending(self, now_ns: int) -> bool:
        return self.process.readable()

    def drain(self, now_ns: int) -> Iterator[Batch]:
        if self.process.socket is not None:
            yield from self.received(self.process.socket, now_ns)
        if self.process.due():
            yield from self.supervise(now_ns)

    def failures(self) -> dict[str, str]:
        return self.process.failures()

    def processes(self) -> list[dict[str, Any]]:
        return self.process.processes()

    def close(self) -> None:
        self.process.close()

    def messages(
        self, source: socket.socket, most: int, size: int, max_fds: int = 0
    ) -> Iterator[tuple[bytes, list[int]]]:
        """At most so many messages of the child that have arrived, with their descriptors. size: of a message, in
        bytes. max_fds: descriptors that a message may have; the kernel closes further ones.
        """
        try:
            for _ in range(most):
                data, fds, _, _ = socket.recv_fds(source, size, max_fds, socket.MSG_CMSG_CLOEXEC)
                if not data:  # it has ended
                    self.process.drained = True
                    break
                yield data, fds
        except (BlockingIOError, ConnectionResetError):  # data sent before a reset is still read first
            pass
