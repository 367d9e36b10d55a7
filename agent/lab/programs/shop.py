"""A server that works on one request after the other, and two clients: one retries until it is answered, the other
waits.
"""

from __future__ import annotations

import socket
import threading
import time

from agent.common.clocks import boot_ns
from agent.lab.program import OTHER, LabProgram, Run

PORT, WORK_S, THREADS = 8084, 0.01, 10
ANSWER = b"HTTP/1.0 200 OK\r\n\r\nok\n"


def serve(run: Run) -> None:
    """A ``barred`` client costs as much as others, and gets no answer."""
    run.listen()
    listener = socket.create_server((OTHER, PORT), backlog=64)
    while True:
        connection, _ = listener.accept()
        with connection:
            try:
                request = connection.recv(4096)
                time.sleep(WORK_S)
                if not run.settings["barred"] or run.settings["barred"].encode() not in request:
                    connection.sendall(ANSWER)
            except OSError:
                continue


def _fetch(who: str) -> str:
    try:
        with socket.create_connection((OTHER, PORT), timeout=8) as connection:
            connection.sendall(f"GET /{who} HTTP/1.0\r\n\r\n".encode())
            return "ok" if connection.recv(4096) else "no_answer"
    except OSError as error:
        return type(error).__name__


def retry_until_done(run: Run) -> None:
    """Each thread sends a request every second, and on failure retries after ``pause_s`` until it is answered."""
    run.listen()

    def retrying() -> None:
        tick = run.every(1)
        while True:
            tick()
            start_ns = boot_ns()
            while (outcome := _fetch("eager")) != "ok":
                time.sleep(run.settings["pause_s"])
            run.log("ask", start_ns, outcome)

    for n in range(THREADS):
        threading.Timer(n / THREADS, retrying).start()
    threading.Event().wait()


def wait(run: Run) -> None:
    run.listen()
    tick = run.every(6)
    while True:
        tick()
        start_ns = boot_ns()
        run.log("ask", start_ns, _fetch("patient"))


PROGRAMS = (
    LabProgram("shop", serve, settings={"barred": ""}, names=(f"{OTHER}:{PORT}",), server=True),
    LabProgram("eager", retry_until_done, settings={"pause_s": 0.5}, uses=("shop",)),
    LabProgram("patient", wait, names=("lab-shop",), uses=("shop",)),
)
