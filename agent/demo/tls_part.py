"""A TLS server and a client on loopback that make a new handshake a few times a second."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path


def prepare(directory: Path) -> tuple[Callable[[], None], Callable[[], None]] | None:
    """The bodies of the server's and the client's process; None where openssl is not installed.

    Raises subprocess.CalledProcessError when the certificate cannot be made.
    """
    if shutil.which("openssl") is None:
        return None
    key, certificate = make_certificate(directory, "127.0.0.1")
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificate, key)
    client_context = ssl.create_default_context(cafile=str(certificate))
    listener = socket.create_server(("127.0.0.1", 0))
    return partial(serve, listener, server_context), partial(connect, listener.getsockname(), client_context)


def make_certificate(directory: Path, address: str) -> tuple[Path, Path]:
    """A new key and its certificate, for an address: ``tls.key`` and ``tls.crt``. Raises CalledProcessError."""
    key, certificate = directory / "tls.key", directory / "tls.crt"
    subject = ["-subj", "/CN=localhost", "-addext", f"subjectAltName=IP:{address}"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subprocess.run(
        ["openssl", "req", "-x509", *curve, *subject, "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    return key, certificate


def serve(listener: socket.socket, context: ssl.SSLContext) -> None:
    """One handshake and one line a connection."""
    while True:
        connection, _ = listener.accept()
        with connection, context.wrap_socket(connection, server_side=True) as secure:
            secure.sendall(secure.recv(100))


def connect(address: tuple[str, int], context: ssl.SSLContext) -> None:
    """Five connections a second, until the server ends, which may be first when the demo ends."""
    with contextlib.suppress(ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
        while True:
            with (
                socket.create_connection(address) as connection,
                context.wrap_socket(connection, server_hostname="127.0.0.1") as secure,
            ):
                secure.sendall(b"hello")
                secure.recv(100)
            time.sleep(0.2)
