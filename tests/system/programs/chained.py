"""Programs of a chain. ``web PORT KIND WHERE``: a server that for each request asks another one (http, sql), or writes
to a socket or to its standard output (pipe); from SIGUSR1 on its requests sleep for 4 s, for 4 s. ``log PATH``: a
daemon that reads from a socket; at SIGUSR1 it sleeps for 5 s, at SIGUSR2 it computes for 5 s.
"""

from __future__ import annotations

import http.server
import os
import queue
import selectors
import signal
import socket
import socketserver
import sys
import threading
import time
import urllib.request
from collections.abc import Callable


def log(path: str) -> None:
    naps: list[float] = []
    sums: list[float] = []
    signal.signal(signal.SIGUSR1, lambda *_: naps.append(5))
    signal.signal(signal.SIGUSR2, lambda *_: sums.append(5))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    ready = selectors.DefaultSelector()
    ready.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select(0.1):
            if key.fileobj is listener:
                ready.register(listener.accept()[0], selectors.EVENT_READ)
            else:
                os.read(key.fd, 1 << 16)
        time.sleep(naps.pop() if naps else 0)
        until = time.monotonic() + (sums.pop() if sums else 0)
        while time.monotonic() < until:
            pass


def work_of(kind: str, where: str) -> Callable[[], object]:
    if kind == "http":
        return lambda: urllib.request.urlopen(f"http://127.0.0.1:{where}/", timeout=20).read()
    if kind == "pipe":
        return lambda: os.write(1, bytes(8192))
    if kind == "socket":
        connection, lock = socket.socket(socket.AF_UNIX), threading.Lock()
        connection.connect(where)

        def send() -> None:
            with lock:
                connection.sendall(bytes(16384))

        return send
    import psycopg2

    pool: queue.Queue[psycopg2.extensions.connection] = queue.Queue()
    for _ in range(4):
        pool.put(psycopg2.connect(where))
        pool.queue[-1].autocommit = True

    def query() -> None:
        one = pool.get()
        try:
            with one.cursor() as cursor:
                cursor.execute("UPDATE account SET n = n + 1")
        finally:
            pool.put(one)

    return query


def web(port: str, kind: str, where: str) -> None:
    work, until = work_of(kind, where), [0.0]
    signal.signal(signal.SIGUSR1, lambda *_: until.append(time.monotonic() + 4))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if time.monotonic() < until[-1]:
                time.sleep(4)
            work()
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
        daemon_threads, request_queue_size = True, 64

    Server(("127.0.0.1", int(port)), Handler).serve_forever()


{"log": log, "web": web}[sys.argv[1]](*sys.argv[2:])
