"""What servers answer, known by its first bytes: errors of each protocol that is known, and what is none."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from tests.kernel.conftest import Attached

Attach = Callable[..., Attached]

_POSTGRESQL = b"E\x00\x00\x00\x5aSFATAL\x00VFATAL\x00C53300\x00Msorry, too many clients already\x00\x00"
_TRANSLATED = b"E\x00\x00\x00\x5aSSCHWERWIEGEND\x00VFATAL\x00C53300\x00Mtut mir leid\x00\x00"
_MYSQL = b"\x17\x00\x00\x01\xff\x10\x04#08004Too many connections"
_AMQP = b"\x01\x00\x01\x00\x00\x00\x20\x00\x14\x00\x28\x01\x94\x0bNOT_FOUND"

ANSWERS = {
    b"HTTP/1.1 502 Bad Gateway\r\n\r\n": ("http", "502"),
    b"HTTP/1.0 429 Too Many\r\n\r\n": ("http", "429"),
    b"HTTP/1.1 404 Not Found\r\n\r\n": ("http", ""),
    b"HTTP/1.1 200 OK\r\n\r\n": ("http", ""),
    b"-OOM command not allowed\r\n": ("redis", "OOM"),
    b"-READONLY You can't\r\n": ("redis", "READONLY"),
    b"-ERR unknown subcommand 'setinfo'. Try CLIENT HELP.\r\n": ("redis", "ERR unknown"),
    b"-ERR Unknown subcommand or wrong number of arguments for 'setinfo'\r\n": ("redis", "ERR Unknown"),
    b"-ERR unknown command 'FT.SEARCH', with args beginning with: \r\n": ("redis", "ERR"),
    b"+OK\r\n": ("redis", ""),
    b"$-1\r\n": ("redis", ""),
    b"$5\r\nhello\r\n": ("redis", ""),
    _POSTGRESQL: ("postgresql", "53300"),
    _TRANSLATED: ("postgresql", "error"),
    b"1\x00\x00\x00\x04" + _POSTGRESQL: ("postgresql", "53300"),
    b"1\x00\x00\x00\x042\x00\x00\x00\x04" + _POSTGRESQL: ("postgresql", "53300"),
    b"C\x00\x00\x00\x0dSELECT 1\x00Z\x00\x00\x00\x05I": ("postgresql", ""),
    _MYSQL: ("mysql", "1040"),
    b"\x07\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00": ("mysql", ""),
    b"SERVER_ERROR out of memory\r\n": ("memcached", "SERVER_ERROR"),
    b"STORED\r\n": ("memcached", ""),
    _AMQP: ("amqp", "0404"),
    b"HTTP is no answer": None,
    b"-1 is a number": None,
    b"-- a comment": None,
    b"Egal\x00was\x00das\x00ist, es ist kein PostgreSQL": None,
    b"\x17\x03\x03\x00\x20 a record of TLS, whatever is in it": None,
    os.urandom(4) + b"\x80 noise": None,
}


@contextmanager
def server(answer: bytes) -> Iterator[int]:
    """Answers the same to whatever comes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with listening.accept()[0] as connection:
                while connection.recv(100):
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        thread.join()


def among(ports: Collection[int]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda rows: rows[np.isin(rows["dport"], list(ports))]


def test_first_bytes(attach: Attach) -> None:
    attached, ports = attach("tcp"), {}
    with ExitStack() as servers:  # all at once: a port has one answer
        for answer in ANSWERS:
            port = servers.enter_context(server(answer))
            ports[port] = answer
            with socket.create_connection(("127.0.0.1", port)) as client:
                for _ in range(5):
                    client.sendall(b"anything")
                    assert client.recv(4096) == answer
    known = {port for port, answer in ports.items() if ANSWERS[answer]}
    rows = attached.wait("service_answer", among(ports), lambda rows: set(rows["dport"]) >= known)
    assert set(rows["pid"]) == {os.getpid()}
    for port, answer in ports.items():
        mine, expected = rows[rows["dport"] == port], ANSWERS[answer]
        reported = {(row["protocol"].decode(), row["code"].decode()) for row in mine}
        assert reported == ({expected} if expected else set()), answer
        assert mine["count"].sum() <= 5
        assert {row["peer"].tobytes()[16:] for row in mine} == ({port.to_bytes(2, "little")} if expected else set())


def test_second_answer_of_a_burst(attach: Attach) -> None:
    """A client that asks two things at once after another has the second one looked at, too: it is what fails."""
    attached = attach("tcp")
    answers = [b"+OK\r\n", b"-OOM command not allowed\r\n"]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def serve() -> None:
            for _ in range(23):
                with listening.accept()[0] as connection:
                    for answer in answers:
                        connection.recv(100)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        for _ in range(23):
            with socket.create_connection(("127.0.0.1", port)) as client:
                for answer in answers:
                    client.sendall(b"anything")
                    assert client.recv(100) == answer
        thread.join()
    rows = attached.wait("service_answer", among([port]), lambda rows: (rows["code"] == b"OOM").any())
    assert rows["count"][rows["code"] == b"OOM"].sum() > 0


def test_nothing_when_detached(attach: Attach) -> None:
    attached = attach("tcp")
    os.close(attached.loaded.families["tcp"].links.pop("on_tcp_receive"))
    with server(b"-OOM no\r\n") as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"anything")
        client.recv(100)
    assert not len(attached.wait("service_answer", among([port]), lambda rows: len(rows) > 0, 1))
