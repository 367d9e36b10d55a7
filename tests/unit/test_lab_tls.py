"""The laboratory's slow TLS clients: each word of what they are slow before is a part of a real handshake."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path
from typing import Any

from agent.demo.tls_part import make_certificate
from agent.lab.kinds.tls import BEFORE, _request
from agent.lab.program import FAR, Run, programs
from agent.lab.programs import tls_server

#: Content type of each part's first record, and its message's type where that can be read.
PARTS = {"client_hello": (22, 1), "key_exchange": (22, 16), "finished": (20, 1), "request": (23, None)}


class Noting:
    def __init__(self, connection: socket.socket) -> None:
        self._connection, self.sent = connection, list[bytes]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def sendall(self, data: bytes) -> None:
        self.sent.append(data)
        self._connection.sendall(data)


def test_parts_of_the_handshake_are_sent_one_by_one(tmp_path: Path) -> None:
    make_certificate(tmp_path, FAR)
    run = Run(programs()["tls-server"], tmp_path, tmp_path, tmp_path / "intake.sock")
    run.log = lambda *_: None  # type: ignore[method-assign,assignment] # its descriptor is a program's
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    server.maximum_version = ssl.TLSVersion.TLSv1_2
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    ours, theirs = socket.socketpair()
    serving = threading.Thread(target=tls_server._serve_one, args=(run, server, theirs), daemon=True)
    serving.start()
    with ours:
        noting = Noting(ours)
        _request(client, noting, "", 0.0)  # type: ignore[arg-type]
    serving.join(10)
    assert tuple(PARTS) == BEFORE
    for data, (content, message) in zip(noting.sent, PARTS.values(), strict=True):
        assert data[0] == content
        assert message is None or data[5] == message
