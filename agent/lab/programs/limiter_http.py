"""APIs that resolve a name and call an HTTP server for each decision; the name of one of them needs DNS by TCP."""

from __future__ import annotations

import socket
from functools import partial

from agent.lab.program import Run
from agent.lab.programs.dns_server import LONG
from agent.lab.programs.limiters import api, decide
from agent.lab.programs.upstream import PORT


def serve(name: str, run: Run) -> None:
    def check() -> int:
        address = socket.getaddrinfo(name, PORT, socket.AF_INET, socket.SOCK_STREAM)[0][4]
        with socket.create_connection((str(address[0]), PORT), timeout=10) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            if not connection.recv(4096):
                raise ConnectionError("no answer")
        return 1

    decide(run, check)


PROGRAMS = tuple(
    api(program, partial(serve, name), "upstream", "dns", "link", per_s=per_s, limit=20)
    for program, name, per_s in (("api-http", "policy.lab", 8.0), ("api-dns-tcp", LONG, 4.0))
)
