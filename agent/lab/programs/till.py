"""Two servers with a thread per connection and an internal lock that each answer needs, and the clients of each, which
stay connected.
"""

from __future__ import annotations

import socket
import threading
import time
from functools import partial

from agent.common.clocks import boot_ns
from agent.lab.program import OTHER, LabProgram, Run

PORTS, CLIENTS = {"till": 8085, "desk": 8086}, 6
CONNECTED, ANSWER = b"GET / HTTP/1.1\r\nHost: till\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n"


# Run as root: a user's share of on-demand profiles is enough for two faults in a session.
def serve(port: int, run: Run) -> None:
    """Each answer waits for ``sleep_s``, and then for the lock, which another thread takes for ``hold_s`` each
    second.
    """
    run.listen()
    lock = threading.Lock()

    def hold() -> None:
        while True:
            with lock:
                time.sleep(run.settings["hold_s"])
            until = time.monotonic() + 1.0
            while time.monotonic() < until and not run.settings["now"]:
                time.sleep(0.02)
            run.settings["now"] = False

    def answer(connection: socket.socket) -> None:
        with connection:
            while connection.recv(4096):
                if run.settings["sleep_s"]:
                    time.sleep(run.settings["sleep_s"])
                with lock:
                    connection.sendall(ANSWER)

    threading.Thread(target=hold, daemon=True).start()
    listener = socket.create_server((OTHER, port), backlog=64)
    while True:
        threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()


def fetch(port: int, run: Run) -> None:
    run.listen()

    def customer() -> None:
        tick = run.every(4)
        with socket.create_connection((OTHER, port), timeout=20) as connection:
            while True:
                tick()
                start_ns = boot_ns()
                connection.sendall(CONNECTED)
                run.log("ask", start_ns, "ok" if connection.recv(4096) else "no_answer")

    for n in range(CLIENTS):
        threading.Timer(n / (4 * CLIENTS), customer).start()
    threading.Event().wait()


PROGRAMS = tuple(
    program
    for name, port in PORTS.items()
    for program in (
        LabProgram(
            name,
            partial(serve, port),
            settings={"sleep_s": 0.0, "hold_s": 0.0005, "now": False},
            names=(f"{OTHER}:{port}",),
            server=True,
            root=True,
        ),
        LabProgram(f"at-{name}", partial(fetch, port), uses=(name,)),
    )
)
