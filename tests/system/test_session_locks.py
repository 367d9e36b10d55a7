"""A server with a thread for each session, one of which holds a lock while its client is idle."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

from tests.patience import COARSE, listens, until
from tests.ports import free_port
from tests.system.agent import Agent

#: argv: its port. As a database: "begin" takes the lock and keeps it until the session's next line; "ask" needs it.
SERVER = """
import socketserver, sys, threading
lock = threading.Lock()
class Session(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            if line == b"begin\\n":
                with lock:
                    self.wfile.write(b"ok\\n")
                    self.rfile.readline()
            else:
                lock.acquire()
                lock.release()
            self.wfile.write(b"ok\\n")
class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = allow_reuse_address = True
Server(("127.0.0.1", int(sys.argv[1])), Session).serve_forever()
"""
#: argv: a port. Asks in four sessions, ten times a second each.
CLIENT = """
import socket, sys, threading, time
def asks():
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as s:
        while True:
            s.sendall(b"ask\\n")
            s.recv(64)
            time.sleep(0.1)
[threading.Thread(target=asks).start() for _ in range(4)]
"""
#: argv: a port, seconds. Begins, and thinks for so long before it commits.
HOLDER = """
import socket, sys, time
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as s:
    s.sendall(b"begin\\n")
    s.recv(64)
    time.sleep(float(sys.argv[2]))
    s.sendall(b"commit\\n")
    s.recv(64)
"""


def test_the_client_that_is_idle_while_its_session_holds_the_lock_is_named(start: Callable[..., Agent]) -> None:
    port = free_port()
    with ExitStack() as ends:

        def program(code: str, *args: object) -> subprocess.Popen[bytes]:
            its = ends.enter_context(subprocess.Popen([sys.executable, "-c", code, *map(str, args)]))
            ends.callback(its.kill)
            return its

        server = program(SERVER, port)
        until(lambda: listens(port))
        program(CLIENT, port)
        agent = start().ready()
        time.sleep(25 * COARSE)  # until its usual times are known
        holder = program(HOLDER, port, 4)

        def found() -> list[tuple[str, int | None]]:
            rows = agent.json("findings")["rows"]
            return [(row["cause"], row["culprit_pid"]) for row in rows if row["impacted_pid"] == server.pid]

        agent.until(lambda: ("process_wait", holder.pid) in found(), 30)
