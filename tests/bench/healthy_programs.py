"""The programs of `tests.bench.healthy`: what an ordinary node runs, each a few lines. ``python -m
tests.bench.healthy_programs NAME ARGS``.

None of them is told of any fault; all end at SIGTERM, servers after the requests that they have.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n"


def connected(address: str) -> socket.socket:
    """address: a port of loopback, or a path."""
    if address.startswith("/"):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(10)
        sock.connect(address)
        return sock
    return socket.create_connection(("127.0.0.1", int(address)), timeout=10)


def listening(address: str, backlog: int = 128) -> socket.socket:
    if address.startswith("/"):
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(address)
    else:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("127.0.0.1", int(address)))
    sock.listen(backlog)
    return sock


def command(sock: socket.socket, *words: str) -> bytes:
    """One Redis command; the reply's first bytes."""
    sock.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w.encode()) for w in words))
    reply = sock.recv(65536)
    if not reply:
        raise ConnectionError("closed")
    return reply


# Servers


def events(port: str) -> None:
    """An event loop, keep-alive; at SIGTERM it listens no more and answers whom it has for a second."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await asyncio.sleep(random.expovariate(500))
                writer.write(ANSWER)
                await writer.drain()
        writer.close()

    async def main() -> None:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        server = await asyncio.start_server(serve, sock=listening(port))
        await ended.wait()
        server.close()
        await asyncio.sleep(1)

    asyncio.run(main())


def prefork(address: str, workers: str = "3", most: str = "150") -> None:
    """A master and children that accept in turn; a child ends after so many requests and another takes its place, as
    gunicorn's with max-requests.
    """
    sock, ending = listening(address), []
    signal.signal(signal.SIGTERM, lambda *_: ending.append(1))

    def work() -> None:
        stop: list[int] = []
        signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
        sock.settimeout(0.5)
        for _ in range(random.randrange(int(most) // 2, int(most))):
            if stop:
                break
            with contextlib.suppress(OSError):
                connection, _address = sock.accept()
                connection.settimeout(5)
                with connection:
                    connection.recv(4096)
                    sum(range(random.randrange(20_000)))
                    connection.sendall(ANSWER.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n"))
        os._exit(0)

    children: set[int] = set()
    while not ending:
        while len(children) < int(workers):
            if not (pid := os.fork()):
                work()
            children.add(pid)
        gone, _ = os.waitpid(-1, os.WNOHANG)
        children.discard(gone)
        time.sleep(0.02)
    for pid in children:
        os.kill(pid, signal.SIGTERM)
    for pid in children:
        os.waitpid(pid, 0)


# Workers


def _count(n: int) -> int:
    time.sleep(random.expovariate(20))
    return sum(range(n))


def pool(_port: str) -> None:
    """multiprocessing, children that are replaced after some tasks."""
    ending: list[int] = []
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=20) as several:
        signal.signal(signal.SIGTERM, lambda *_: ending.append(1))
        while not ending:
            several.map(_count, [random.randrange(100_000) for _ in range(8)])
            time.sleep(random.expovariate(2))


def consumer(port: str) -> None:
    """Waits for work in a Redis list."""
    sock = connected(port)
    while True:
        command(sock, "BLPOP", "work", "1")


def journal(place: str) -> None:
    """Appends and syncs; at SIGHUP it opens its file anew, as after logrotate."""
    anew: list[int] = []
    signal.signal(signal.SIGHUP, lambda *_: anew.append(1))
    while True:
        with open(place, "ab", buffering=0) as file:
            anew.clear()
            while not anew:
                file.write(os.urandom(600))
                os.fsync(file.fileno())
                time.sleep(random.expovariate(5))


# Callers: they log what they felt


def caller(kind: str, address: str, log: str, rate: str, control: str) -> None:
    """Asks at a rate times what the file ``control`` says; writes [start, duration, what, outcome] as the laboratory's
    programs do.
    """
    with open(log, "a", buffering=1, encoding="utf-8") as out:
        ask = ASK[kind](address)
        while True:
            factor = float(Path(control).read_text() or 1)
            time.sleep(random.expovariate(float(rate) * factor))
            begun, output = time.clock_gettime_ns(time.CLOCK_BOOTTIME), "ok"
            try:
                ask()
            except (OSError, http.client.HTTPException) as error:
                output = type(error).__name__
                with contextlib.suppress(OSError):
                    ask = ASK[kind](address)
            print(json.dumps([begun, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - begun, "ask", output]), file=out)


class Web:
    """Over one connection as long as it holds, or a new one each time (``once``)."""

    def __init__(self, address: str, once: bool = False) -> None:
        self.address, self.once, self.sock = address, once, connected(address)

    def __call__(self) -> None:
        again = 2  # a connection that was kept may have been closed meanwhile: every client asks once more by a new one
        while again:
            again -= 1
            try:
                self.sock.sendall(b"GET / HTTP/1.1\r\nHost: local\r\n\r\n")
                reply = self.sock.recv(4096)
                if reply.startswith(b"HTTP/1.1 200"):
                    break
                if reply or not again:
                    raise ConnectionError(reply[:40])
            except ConnectionError:
                if not again:
                    raise
            self.sock = connected(self.address)
        if self.once or b"Connection: close" in reply:
            self.sock.close()
            self.sock = connected(self.address)


class Redis:
    def __init__(self, address: str) -> None:
        self.sock = connected(address)

    def __call__(self) -> None:
        key = f"k{random.randrange(1000)}"
        command(self.sock, "SET", key, "v" * random.randrange(2000))
        command(self.sock, "GET", key)
        command(self.sock, "RPUSH", "work", "task")


class Table:
    """PostgreSQL, by one psql that stays."""

    def __init__(self, address: str) -> None:
        place, _, port = address.rpartition(":")
        self.psql = subprocess.Popen(
            ["psql", "-qAt", "-h", place, "-p", port, "-U", "postgres", "postgres"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __call__(self) -> None:
        assert self.psql.stdin and self.psql.stdout
        self.psql.stdin.write(b"insert into t values (random()); select 'said', count(*) from t where a > 0.999;\n")
        self.psql.stdin.flush()
        if not self.psql.stdout.readline():
            raise ConnectionError("ended")


ASK = {"web": Web, "once": lambda address: Web(address, once=True), "redis": Redis, "table": Table}
PROGRAMS = {f.__name__: f for f in (events, prefork, pool, consumer, journal, caller)}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
