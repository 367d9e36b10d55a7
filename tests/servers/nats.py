"""A NATS server with JetStream of a test's own, and its clients, which speak the text protocol themselves.

``python -m tests.servers.nats consume PORT STREAM CONSUMER BATCH``: pulls that many messages at a time and acknowledges
each. It prints a line when it consumes. ``publish PORT SUBJECT PER_SECOND``: publishes until it is killed.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.patience import listening
from tests.ports import free_ports
from tests.servers import process
from tests.servers.process import ServerProcess, paced

SECOND = 1_000_000_000


class NatsMessage:
    """subject: on which it was received. answer_to: where an answer or acknowledgement goes."""

    def __init__(self, subject: str, answer_to: str, data: bytes) -> None:
        self.subject, self.answer_to, self.data = subject, answer_to, data


class NatsClient:
    """A connection. ``ask`` is for one answer at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 20)
        self._file = self._socket.makefile("rb")
        self._inbox, self._sid = f"_INBOX.{os.getpid()}.{id(self):x}", 1
        self._file.readline()
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
        self.send(f"CONNECT {json.dumps(options)}\r\nSUB {self._inbox} 1\r\n".encode())

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def publish(self, subject: str, data: bytes = b"", answer_to: str = "") -> None:
        self.send(f"PUB {subject} {answer_to} {len(data)}\r\n".encode() + data + b"\r\n")

    def put(self, subject: str, message_id: bytes) -> bool:
        """Sends a message that is its own id. Whether the stream took it as a duplicate."""
        head = b"NATS/1.0\r\nNats-Msg-Id: %s\r\n\r\n" % message_id
        sizes = f"{len(head)} {len(head) + len(message_id)}"
        self.send(f"HPUB {subject} {self._inbox} {sizes}\r\n".encode() + head + message_id + b"\r\n")
        found: dict[str, Any] = json.loads(self.receive().data)
        assert "error" not in found, found
        return bool(found.get("duplicate", False))

    def subscribe(self, subject: str) -> None:
        self._sid += 1
        self.send(f"SUB {subject} {self._sid}\r\n".encode())

    def receive(self) -> NatsMessage:
        """The next message. Raises TimeoutError, ConnectionError."""
        while True:
            line = self._file.readline()
            words = line.split()
            if not words:
                raise ConnectionError
            if words[0] == b"PING":
                self.send(b"PONG\r\n")
            elif words[0] in (b"MSG", b"HMSG"):
                head = 1 if words[0] == b"HMSG" else 0
                data = self._file.read(int(words[-1]) + 2)[int(words[-2]) if head else 0 : -2]
                middle = [word.decode() for word in words[3 : len(words) - 1 - head]]
                return NatsMessage(words[1].decode(), middle[0] if middle else "", data)
            elif words[0] == b"-ERR":
                raise ConnectionError(line)

    def ask(self, subject: str, given: Any = None) -> dict[str, Any]:
        """An answer of JetStream's API, or to a message that a stream takes. Raises AssertionError for an error."""
        data = b"" if given is None else given if isinstance(given, bytes) else json.dumps(given).encode()
        self.publish(subject, data, self._inbox)
        found: dict[str, Any] = json.loads(self.receive().data)
        assert "error" not in found, found
        return found

    def api(self, what: str, given: Any = None) -> dict[str, Any]:
        return self.ask(f"$JS.API.{what}", given)

    def stream(self, name: str, **config: Any) -> None:
        """A stream of the subjects ``name.>`` in memory."""
        self.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], "storage": "memory", **config})

    def consumer(self, stream: str, name: str, **config: Any) -> None:
        settings = {"durable_name": name, "ack_policy": "explicit", **config}
        self.api(f"CONSUMER.DURABLE.CREATE.{stream}.{name}", {"stream_name": stream, "config": settings})

    def fill(self, subject: str, n: int) -> None:
        """Messages that the stream has acknowledged."""
        for i in range(n):
            self.ask(subject, str(i).encode())

    def pull(self, stream: str, consumer: str, batch: int, expires_s: float = 20) -> list[NatsMessage]:
        """The next messages, at most ``batch``, without acknowledging them; waits for each."""
        request = {"batch": batch, "expires": int(expires_s * SECOND)}
        self.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", json.dumps(request).encode(), self._inbox)
        out: list[NatsMessage] = []
        while len(out) < batch:
            message = self.receive()
            if not message.answer_to:  # a status: the request has expired
                break
            out.append(message)
        return out

    def acknowledge(self, *messages: NatsMessage, how: bytes = b"+ACK") -> None:
        """Returns when the server has done it."""
        for message in messages:
            self.publish(message.answer_to, how, self._inbox)
            self.receive()

    def close(self) -> None:
        self._file.close()
        self._socket.close()


class Nats(ServerProcess):
    """A server on free ports. command: the beginning of its command line. more: lines of its configuration."""

    def __init__(
        self,
        directory: Path,
        command: Sequence[str] = ("nats-server",),
        more: str = "",
        name: str = "one",
        scheme: str = "http",
    ) -> None:
        self.directory, self.command, self._scheme = directory, command, scheme
        self.port, self.monitoring = free_ports(2)
        self.config = directory / "nats.conf"
        self.config.write_text(
            f"listen: 127.0.0.1:{self.port}\n{scheme}: 127.0.0.1:{self.monitoring}\nserver_name: {name}\n"
            f"jetstream {{ store_dir: {directory}/js, max_mem: 256MB, max_file: 256MB }}\n{more}\n"
        )
        self.start()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.monitoring}"

    def start(self, wait: bool = True) -> None:
        self.run([*self.command, "-c", str(self.config)])
        if wait:
            self.wait()

    def wait(self) -> None:
        listening(self.port, self.monitoring, process=self.process, log=self.log)

    def client(self) -> NatsClient:
        return NatsClient(self.port)


client = partial(process.client, "tests.servers.nats")


def consume(port: str, stream: str, consumer: str, batch: str) -> None:
    connection = NatsClient(int(port))
    print("begun", flush=True)
    while True:
        for message in connection.pull(stream, consumer, int(batch)):
            connection.publish(message.answer_to, b"+ACK")


def publish(port: str, subject: str, per_s: str) -> None:
    connection = NatsClient(int(port))
    for _ in paced(float(per_s)):
        connection.publish(subject, b"x" * 100)


if __name__ == "__main__":
    (consume if sys.argv[1] == "consume" else publish)(*sys.argv[2:])
