"""Services whose event loop does not turn: one computes, one is stopped. Each is reported by itself, with what became
of it, though nobody watches it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.patience import tries
from tests.system.agent import Agent

#: Answers each line; one that says how long a text to search computes first, by a pattern that tries all ways.
LOOP = """
import asyncio, re, sys
async def serve(reader, writer):
    while line := await reader.readline():
        re.match(rb"(a+)+$", b"a" * int(line) + b"b")
        writer.write(b"ok\\n")
        await writer.drain()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""
NODE = """
const server = require("net").createServer((c) => c.on("data", () => c.write("ok\\n")))
server.listen(0, "127.0.0.1", () => console.log(server.address().port))
"""
WARM_S, STOPPED_S, HEAVY = 13, 3, 25


@contextlib.contextmanager
def service(*command: str) -> Iterator[tuple[int, int]]:
    """Its pid and port. What else runs on the machine must not be what holds it up."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            os.setpriority(os.PRIO_PROCESS, process.pid, -15)
            yield process.pid, int(process.stdout.readline())
        finally:
            os.kill(process.pid, signal.SIGCONT)
            process.kill()


@contextlib.contextmanager
def asked(port: int, clients: int = 6, each_s: float = 0.15) -> Iterator[None]:
    """By several at once, all the time."""
    over = threading.Event()

    def ask() -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection, contextlib.suppress(OSError):
            while not over.wait(each_s):
                connection.sendall(b"1\n")
                connection.recv(100)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
        time.sleep(each_s / clients)
    try:
        yield
    finally:
        over.set()


def reported(agent: Agent, pid: int, cause: str, limit_s: float = 15) -> dict[str, Any]:
    """The finding that says this of a process; where others keep the processors busy, too, that may be its first
    cause.
    """
    found = list[dict[str, Any]]()
    for _ in tries(limit_s, 0.3, 2):
        found = agent.json("findings")["rows"]
        for one in found:
            if any(held["cause"] == cause and f"pid {pid} " in held["words"] for held in one["causes"]):
                return one
    raise AssertionError([(one["cause"], one["culprit_pid"], one["sentence"]) for one in found])


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_an_event_loop_that_computes_and_one_that_is_stopped(start: Callable[..., Agent]) -> None:
    agent = start().ready()
    with service(sys.executable, "-c", LOOP) as (computes, at), service("node", "-e", NODE) as (stops, port):
        with asked(at), asked(port):
            time.sleep(WARM_S)
            with socket.create_connection(("127.0.0.1", at)) as heavy:
                heavy.sendall(f"{HEAVY}\n".encode())
                os.kill(stops, signal.SIGSTOP)
                time.sleep(STOPPED_S)
                os.kill(stops, signal.SIGCONT)
                heavy.recv(100)
            assert reported(agent, computes, "busy")["state"] in ("open", "closed")
            assert reported(agent, stops, "process_stopped")["symptom"] in ("service_latency", "process_stopped")
            ran = agent.json("query", "cpu_use", "--where", f"pid = {computes}")["rows"]
            assert max(row["user_ns"] for row in ran) > 20_000_000
