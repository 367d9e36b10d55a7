"""The exporter over TLS: a collector whose authority is known, and one whose is not."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from exporters.otlp_settings import Endpoint
from exporters.send import HttpSender
from tests.servers.certificates import self_signed


class _Takes(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[tuple[int, str]]:
    """(its port, its certificate)."""
    key, certificate = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with HTTPServer(("127.0.0.1", 0), _Takes) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server.server_port, certificate
        server.shutdown()


def test_a_known_authority_is_enough_and_the_connection_is_kept(collector: tuple[int, str]) -> None:
    port, certificate = collector
    sender = HttpSender("traces", Endpoint(f"https://localhost:{port}/v1/traces", certificate=certificate, timeout_s=5))
    assert [sender.send(b"").status for _ in range(2)] == ["sent", "sent"]
    sender.close()


def test_an_unknown_authority_is_reported(collector: tuple[int, str]) -> None:
    outcome = HttpSender("traces", Endpoint(f"https://localhost:{collector[0]}/v1/traces", timeout_s=5)).send(b"")
    assert outcome.status == "retry"
    assert "CERTIFICATE_VERIFY_FAILED" in outcome.message
