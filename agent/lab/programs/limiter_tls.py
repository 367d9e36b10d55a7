"""APIs that call a policy server for each decision, by a new TLS connection: nginx by TLS 1.3, our own server
by 1.2.
"""

from __future__ import annotations

import socket
import ssl
from functools import partial

from agent.lab.program import FAR, Run
from agent.lab.programs import nginx, tls_server
from agent.lab.programs.limiters import api, decide


def serve(port: int, run: Run) -> None:
    context = ssl.create_default_context(cafile=str(run.shared / "tls.crt"))

    def check() -> int:
        with (
            socket.create_connection((FAR, port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname=FAR) as secure,
        ):
            secure.sendall(b"GET / HTTP/1.0\r\n\r\n")
            if not secure.recv(4096):
                raise ConnectionError("no answer")
        return 1

    decide(run, check)


PROGRAMS = tuple(
    api(name, partial(serve, port), server, "link", per_s=8.0, limit=20)
    for name, port, server in (("api-tls", nginx.PORT, "nginx"), ("api-tls12", tls_server.PORT, "tls-server"))
)
