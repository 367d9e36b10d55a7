"""A listening socket in an epoll that the agent's loop waits for, and the credentials of its clients."""

from __future__ import annotations

import errno
import select
import socket
import struct

#: Errors of accept after which the client stays in the backlog.
NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener:
    """``sock``: listening, non-blocking. Without free descriptors it is not polled until the next pass, so that the
    loop does not spin; ``deafened`` counts that.
    """

    def __init__(self, epoll: select.epoll, sock: socket.socket) -> None:
        self._epoll, self._sock, self.deaf, self.deafened = epoll, sock, False, 0
        epoll.register(sock, select.EPOLLIN)

    def fileno(self) -> int:
        return self._sock.fileno()

    def accept(self) -> socket.socket | None:
        """The next client's socket, non-blocking; None if there is none, or no descriptor."""
        if self.deaf:
            self._epoll.modify(self._sock, select.EPOLLIN)
            self.deaf = False
        try:
            sock, _ = self._sock.accept()
        except OSError as error:
            if error.errno in NO_ROOM:
                self._epoll.modify(self._sock, 0)
                self.deaf = True
                self.deafened += 1
            return None
        sock.setblocking(False)
        return sock

    def shut(self) -> None:
        """Refuses new clients; those in the backlog may still be accepted."""
        self._sock.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        self._sock.close()


def peer(sock: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process that connected. Raises OSError."""
    pid, uid, _ = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid
