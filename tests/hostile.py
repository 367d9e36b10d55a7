"""Servers that answer to do harm: they send what they like for as long as somebody listens."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

#: What a server does with one connection.
Answers = Callable[[socket.socket], None]


@contextlib.contextmanager
def serving(answers: Answers) -> Iterator[int]:
    """A TCP server on loopback; the port. Each connection is answered on a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0))

    def one(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            answers(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def endless(start: bytes, again: bytes) -> Answers:
    """Answers the first request with ``start``, and then with ``again`` for ever."""

    def answers(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(start)
        while True:
            connection.sendall(again)

    return answers


def reset_peak() -> int:
    """Begins a measurement of memory; the resident bytes now."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    """The most resident memory since then, bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10
