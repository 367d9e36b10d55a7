"""Slow TLS handshakes: the server is slow before one of its flights, or slow clients occupy its workers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager

from agent.lab.kind import Fault, Kind, Offender, Right, Size
from agent.lab.program import FAR
from agent.lab.programs.tls_server import PORT, WORKERS
from agent.lab.stage.stage import GUESTS, Stage

#: What a slow client delays: its parts of a TLS 1.2 handshake, and its request.
BEFORE = ("client_hello", "key_exchange", "finished", "request")


@contextmanager
def slow(stage: Stage, fault: Fault) -> Iterator[Offender]:
    stage.processes.set_settings("tls-server", **{fault.target: fault.size})
    try:
        yield Offender("tls-server")
    finally:
        stage.processes.set_settings("tls-server", **{fault.target: 0.0})


@contextmanager
def slow_clients(stage: Stage, fault: Fault) -> Iterator[Offender]:
    """One slow client more than the server has workers."""
    pids = tuple(
        stage.processes.fork(
            lambda: _request_slowly(fault.target, fault.size), GUESTS, "node", "lab-slowpoke", root=False
        )
        for _ in range(WORKERS + 1)
    )
    try:
        yield Offender("lab-slowpoke", pids=pids)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _request_slowly(before: str, delay_s: float) -> None:
    """Repeats slow requests for ever."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the certificate does not matter here
    while True:
        with contextlib.suppress(OSError), socket.create_connection((FAR, PORT), timeout=20) as connection:
            _request(context, connection, before, delay_s)


def _request(context: ssl.SSLContext, connection: socket.socket, before: str, delay_s: float) -> None:
    arriving, leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
    secure = context.wrap_bio(arriving, leaving)
    parts = iter(BEFORE)

    def send(data: bytes) -> None:
        if next(parts, "") == before:
            time.sleep(delay_s)
        connection.sendall(data)

    while True:
        try:
            secure.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            done = False
        data = leaving.read()
        # The second flight: a record with the key exchange, then the rest of the handshake.
        first = 5 + int.from_bytes(data[3:5], "big")
        for part in (data[:first], data[first:]):
            if part:
                send(part)
        if done:
            break
        arriving.write(connection.recv(65536) or _gone())
    secure.write(b"GET / HTTP/1.0\r\n\r\n")
    send(leaving.read())
    connection.recv(65536)


def _gone() -> bytes:
    raise ConnectionError("closed in the handshake")


_SLOW, _MORE_S = (Right("tls", culprit=True), Right("tls")), (2.0, 6.0)
FLIGHT = Kind(
    "tls_flight_slow",
    "a TLS server takes long before one of its flights",
    Size("delay_s", 0.04, 1.5),
    ("flight1", "flight2"),
    _SLOW,
    slow,
    _MORE_S,
    touches=dict.fromkeys(("flight1", "flight2"), ("tls-server",)),
)
CLIENTS = Kind(
    "tls_clients_slow",
    "clients take long before a part of their handshakes, and all workers of a TLS server wait for them",
    Size("delay_s", 0.1, 1.5),
    BEFORE,
    _SLOW,
    slow_clients,
    _MORE_S,
    touches=dict.fromkeys(BEFORE, ("tls-server",)),
)
