"""A small web server with a short accept queue, which serves one visitor after the other."""

from __future__ import annotations

import socket
import time

from agent.lab.program import OTHER, LabProgram, Run

PORT, BACKLOG = 8081, 8
ANSWER = b"HTTP/1.0 200 OK\r\n\r\nok\n"


def serve(run: Run) -> None:
    """One connection after the other, each taking ``work_s``."""
    run.listen()
    listener = socket.create_server((OTHER, PORT), backlog=BACKLOG)
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # no descriptor is left: new connections wait
            time.sleep(0.05)
            continue
        with connection:
            try:
                connection.recv(4096)
                time.sleep(run.settings["work_s"])
                connection.sendall(ANSWER)
            except OSError:
                continue


PROGRAMS = (LabProgram("web", serve, settings={"work_s": 0.002}, names=(f"{OTHER}:{PORT}",), server=True),)
