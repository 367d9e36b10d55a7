"""The open-loop load: a request each tick, by a new connection, however many still wait."""

from __future__ import annotations

import socket
import threading
from functools import partial

from agent.common.clocks import boot_ns
from agent.lab.program import LOOPBACK, OTHER, LabProgram, Run
from agent.lab.programs import goapi, web

MOST, PATIENCE_S = 200, 8.0


def visit(address: tuple[str, int], run: Run) -> None:
    """At most ``MOST`` at once; those beyond are logged as ``turned_away``."""
    run.listen()
    tick = run.every(1)
    room = threading.Semaphore(MOST)
    while True:
        tick.per_s = run.settings["per_s"]
        tick()
        if room.acquire(blocking=False):
            threading.Thread(target=_one, args=(run, address, room), daemon=True).start()
        else:
            run.log("visit", boot_ns(), "turned_away")


def _one(run: Run, address: tuple[str, int], room: threading.Semaphore) -> None:
    start_ns = boot_ns()
    try:
        with socket.create_connection(address, timeout=PATIENCE_S) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            head = connection.recv(4096)
            outcome = {b"200": "ok", b"429": "refused", b"": "no_answer"}.get(head[9:12], "failed")
    except OSError as error:
        outcome = type(error).__name__
    finally:
        room.release()
    run.log("visit", start_ns, outcome)


PROGRAMS = (
    LabProgram("visitors", partial(visit, (OTHER, web.PORT)), settings={"per_s": 20.0}, uses=("web",)),
    LabProgram("callers", partial(visit, (LOOPBACK, goapi.PORT)), settings={"per_s": 8.0}, uses=("goapi",)),
)
