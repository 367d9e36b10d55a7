"""Small real TCP programs for tests."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np

#: Chooses rows of a table.
Pick = Callable[[np.ndarray], np.ndarray]

_ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], 0), family=int(sys.argv[2]), backlog=512)
print(server.getsockname()[1], flush=True)
while True:
    connection, _ = server.accept()
    with connection:
        try:
            while data := connection.recv(65536):
                connection.sendall(data)
        except ConnectionResetError:
            pass
"""


@contextlib.contextmanager
def echo_server(host: str = "127.0.0.1", family: int = socket.AF_INET) -> Iterator[tuple[int, int]]:
    """A process of its own that echoes, one connection after the other: (pid, port)."""
    with subprocess.Popen([sys.executable, "-c", _ECHO, host, str(int(family))], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


def swallow(server: socket.socket, n: int) -> threading.Thread:
    """A started thread that accepts n connections on ``server``, one after the other, and reads each to its end."""

    def serve() -> None:
        for _ in range(n):
            connection, _peer = server.accept()
            with connection, contextlib.suppress(ConnectionResetError):
                while connection.recv(65536):
                    pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def ask(connection: socket.socket, n: int) -> None:
    """Sends n bytes and reads n back."""
    connection.sendall(b"x" * n)
    while n:
        n -= len(connection.recv(n))


def reset(connection: socket.socket) -> None:
    """Closes with a reset (SO_LINGER 0)."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@contextlib.contextmanager
def closed_port(host: str) -> Iterator[int]:
    """A port that nobody listens on, kept from others."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as holder:
        holder.bind((host, 0))
        yield holder.getsockname()[1]
