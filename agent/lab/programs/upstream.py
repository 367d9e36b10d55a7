"""An HTTP server on the far side: one short answer per connection."""

from __future__ import annotations

import socket
import threading
import time

from agent.common.clocks import boot_ns
from agent.lab.program import FAR, LabProgram, Run

PORT = 8000
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n"


def serve(run: Run) -> None:
    run.listen()
    listener = socket.create_server((FAR, PORT), backlog=64)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(run, connection), daemon=True).start()


def _answer(run: Run, connection: socket.socket) -> None:
    with connection:
        try:
            connection.recv(4096)
            start_ns = boot_ns()
            time.sleep(run.settings["delay_s"])
            connection.sendall(ANSWER)
            run.log("serve", start_ns)
        except OSError:
            return


PROGRAMS = (LabProgram("upstream", serve, "far", {"delay_s": 0.0}, (f"{FAR}:{PORT}",), server=True),)
