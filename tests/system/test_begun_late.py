"""The agent is started while faults go on: nothing is known of the time before."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from agent.kernel.loaded_families import on_the_host
from tests.patience import COARSE, listens, until
from tests.ports import free_port
from tests.system.agent import Agent

#: argv: its port, what it does for a request, with what. A thread for each request.
SERVER = """
import fcntl, os, socket, socketserver, sys, threading
port, work, of = int(sys.argv[1]), sys.argv[2], sys.argv[3]
one, event = threading.Lock(), threading.Event()
def lock():
    with open(of, "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
def log():
    with one:
        os.write(int(of), bytes(4096))
def ask():
    with socket.create_connection(("127.0.0.1", int(of))) as s:
        s.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
        s.recv(4096)
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        while self.rfile.readline().strip():
            pass
        {"lock": lock, "log": log, "ask": ask, "poll": event.wait, "nothing": bool}[work]()
        self.wfile.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")
socketserver.TCPServer.request_queue_size = 100
class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = allow_reuse_address = True
Server(("127.0.0.1", port), Handler).serve_forever()
"""
#: argv: its port, a lock. A worker accepts connections and takes the lock for each request; it ends with its master.
MASTER = """
import ctypes, fcntl, os, signal, socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=100) as listener:
    if os.fork():
        signal.pause()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    while True:
        connection, _ = listener.accept()
        with connection, open(sys.argv[2], "w") as f:
            connection.recv(4096)
            fcntl.flock(f, fcntl.LOCK_EX)
            connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")
"""
#: argv: the port of a Redis. Reads a stream in a group.
CONSUMER = """
import redis, sys
server = redis.Redis(port=int(sys.argv[1]))
server.xgroup_create("jobs", "workers", id="0", mkstream=True)
while True:
    for _, messages in server.xreadgroup("workers", "one", {"jobs": ">"}, count=10, block=1000):
        server.xack("jobs", "workers", *[message for message, _ in messages])
"""
#: argv: the port of a Redis. Writes to that stream.
PRODUCER = """
import redis, sys, time
server = redis.Redis(port=int(sys.argv[1]))
while True:
    server.xadd("jobs", {"n": 1})
    time.sleep(0.02)
"""
#: argv: ports. Asks at each of them, one request after the other.
CLIENT = """
import socket, sys, threading, time
def asks(port):
    while True:
        with socket.create_connection(("127.0.0.1", port)) as s:
            s.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
            s.recv(4096)
        time.sleep(0.1)
threads = [threading.Thread(target=asks, args=(int(port),), daemon=True) for port in sys.argv[1:]]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_faults_that_are_older_than_the_agent_are_explained(start: Callable[..., Agent], tmp_path: Path) -> None:
    """A lock that another process holds, a server that is stopped, a pipe that nobody reads, workers that wait for that
    lock, a consumer that is stopped. Long polls look alike, and are no fault.
    """
    lock, front, up, logs, polls, forwards, forks, broker = (free_port() for _ in range(8))
    file = tmp_path / "stock.lock"
    with ExitStack() as ends, file.open("w") as held:
        reader, writer = os.pipe()
        ends.callback(os.close, writer)

        def program(code: str, *args: object) -> subprocess.Popen[bytes]:
            argv = [sys.executable, "-c", code, *map(str, args)]
            its = ends.enter_context(subprocess.Popen(argv, pass_fds=(writer,)))
            ends.callback(its.kill)
            return its

        servers = {
            port: program(SERVER, port, work, of)
            for port, work, of in (
                *((lock, "lock", file), (up, "nothing", ""), (front, "ask", up)),
                *((logs, "log", writer), (polls, "poll", ""), (forwards, "ask", polls)),
            )
        }
        idle = ends.enter_context(subprocess.Popen(["cat"], stdin=reader, stdout=subprocess.DEVNULL))
        ends.callback(idle.kill)
        os.close(reader)
        argv = ["redis-server", "--port", str(broker), "--save", "", "--dir", str(tmp_path)]
        redis = ends.enter_context(subprocess.Popen(argv, stdout=subprocess.DEVNULL))
        ends.callback(redis.kill)
        until(lambda: listens(broker))
        master, consumer = program(MASTER, forks, file), program(CONSUMER, broker)
        program(PRODUCER, broker)
        ports = lock, front, logs, polls, forwards, forks
        time.sleep(1 * COARSE)
        program(CLIENT, *ports)
        time.sleep(2 * COARSE)
        fcntl.flock(held, fcntl.LOCK_EX)
        for stops in (servers[up], idle, consumer):
            stops.send_signal(signal.SIGSTOP)
        time.sleep(3 * COARSE)
        program(CLIENT, *ports)
        agent = start(config=f"prometheus: ''\nredis: ['redis://127.0.0.1:{broker}']\n").ready()
        program(CLIENT, *ports)

        def findings() -> dict[str, tuple[str, int | None, str]]:
            rows = agent.json("findings")["rows"]
            return {
                row["subject"].rpartition(" ")[2]: (row["cause"], row["culprit_pid"], row["sentence"]) for row in rows
            }

        before = {str(logs), str(forks)} if on_the_host() else set()  # else they are not seen
        wanted = {str(lock), str(up), "workers"} | before
        found = agent.until(lambda: wanted <= findings().keys() and findings(), 40)
        assert found[str(lock)][:2] == ("syscall", os.getpid())
        assert "answered nothing for" in found[str(lock)][2]
        assert found[str(up)][:2] == ("process_stopped", servers[up].pid)
        assert "since before tickscope ran" in found[str(up)][2]
        if before:
            assert found[str(logs)][0] == "syscall"
            assert "write on a pipe" in found[str(logs)][2]
            assert found[str(forks)][:2] == ("syscall", os.getpid())
            assert f"python pid {master.pid} on port {forks} accepted no connection for" in found[str(forks)][2]
        assert found["workers"][:2] == ("process_stopped", consumer.pid)
        assert "No message of redis queue jobs group workers was taken for" in found["workers"][2]
        assert not {str(polls), str(forwards)} & found.keys()
