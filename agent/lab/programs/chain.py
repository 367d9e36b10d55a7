"""A chain of calls: front calls middle, and middle calls back, on the far side. Each gives up after a second."""

from __future__ import annotations

import contextlib
import socket
import threading

from agent.common.clocks import boot_ns
from agent.lab.program import FAR, OTHER, LabProgram, Run

MIDDLE_PORT, BACK_PORT, PATIENCE_S = 8082, 8083, 1.0
ANSWER, LATE = b"HTTP/1.0 200 OK\r\n\r\nok\n", b"HTTP/1.0 504 Gateway Timeout\r\n\r\n"


def _fetch(address: tuple[str, int]) -> str:
    try:
        with socket.create_connection(address, timeout=PATIENCE_S) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return "ok" if b" 200 " in connection.recv(4096) else "failed"
    except OSError as error:
        return type(error).__name__


def back(run: Run) -> None:
    """While it is not ``answering`` it accepts requests, and answers them later."""
    run.listen()
    listener = socket.create_server((FAR, BACK_PORT), backlog=64)
    held: list[socket.socket] = []
    while True:
        connection, _ = listener.accept()
        if not run.settings["answering"]:
            held = [*held, connection][-256:]
            continue
        for waiting in (*held, connection):
            with waiting, contextlib.suppress(OSError):
                waiting.recv(4096)
                waiting.sendall(ANSWER)
        held = []


def middle(run: Run) -> None:
    run.listen()
    listener = socket.create_server((OTHER, MIDDLE_PORT), backlog=64)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_pass_on, args=(connection,), daemon=True).start()


def _pass_on(connection: socket.socket) -> None:
    with connection:
        try:
            connection.recv(4096)
            connection.sendall(ANSWER if _fetch((FAR, BACK_PORT)) == "ok" else LATE)
        except OSError:
            return


def front(run: Run) -> None:
    run.listen()
    tick = run.every(6)
    while True:
        tick()
        threading.Thread(target=_one, args=(run,), daemon=True).start()


def _one(run: Run) -> None:
    start_ns = boot_ns()
    run.log("ask", start_ns, _fetch((OTHER, MIDDLE_PORT)))


PROGRAMS = (
    LabProgram("back", back, "far", {"answering": True}, (f"{FAR}:{BACK_PORT}",), server=True),
    LabProgram("middle", middle, names=(f"{OTHER}:{MIDDLE_PORT}",), uses=("back", "link"), server=True),
    LabProgram("front", front, uses=("middle", "back", "link")),
)
