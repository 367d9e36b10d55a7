"""A private Redis server, a stream of orders, and a consumer group that is only just fast enough."""

from __future__ import annotations

import os
import shutil
import socket
import time
from pathlib import Path
from typing import NamedTuple

from agent.common.resp import RedisDown, RedisUrl, RespClient
from agent.demo.processes import Children, own_directory

STREAM, GROUP = "orders", "billing"
START_S = 10.0
PER_SECOND = 50


class Server(NamedTuple):
    """The running server's pid and port on 127.0.0.1."""

    pid: int
    port: int

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


def start(processes: Children, directory: Path) -> Server | None:
    """None where redis-server is not installed. Without persistence, on a free port. Raises RedisDown."""
    program = shutil.which("redis-server")
    if program is None:
        return None
    data = own_directory(directory / "redis")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        program,
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "no",
        "--dir",
        str(data),
        "--daemonize",
        "no",
    ]
    server = Server(processes.run(command, data, {"PATH": os.environ.get("PATH", "")}).pid, port)
    client = RespClient(RedisUrl.parse(server.url), timeout_s=1)
    until = time.monotonic() + START_S
    while True:
        try:
            client.pipeline([("XGROUP", "CREATE", STREAM, GROUP, "$", "MKSTREAM")])
            client.close()
            return server
        except RedisDown:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def produce(server: Server) -> None:
    """Adds orders at a steady rate. What a stalled server kept waiting follows in a burst, as in a real shop."""
    client = RespClient(RedisUrl.parse(server.url), timeout_s=30)
    start_s, sent = time.monotonic(), 0
    while True:
        due = int((time.monotonic() - start_s) * PER_SECOND)
        if due > sent:
            client.pipeline([("XADD", STREAM, "MAXLEN", "~", 10000, "*", "order", n) for n in range(sent, due)])
            sent = due
        time.sleep(0.05)


def consume(server: Server) -> None:
    """Takes six orders at a time and works 0.1 s on them: 60 a second at most."""
    client = RespClient(RedisUrl.parse(server.url), timeout_s=30)
    while True:
        (got,) = client.pipeline(
            [("XREADGROUP", "GROUP", GROUP, "clerk", "COUNT", 6, "BLOCK", 1000, "STREAMS", STREAM, ">")]
        )
        if got:
            time.sleep(0.1)
            client.pipeline([("XACK", STREAM, GROUP, *[entry[0] for entry in got[0][1]])])
