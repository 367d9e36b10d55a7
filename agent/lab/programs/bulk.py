"""A sender and a receiver across the link: messages at an even rate on one connection. Both log how long they waited
for each other.
"""

from __future__ import annotations

import socket
import time

from agent.common.clocks import boot_ns
from agent.lab.program import FAR, LabProgram, Run

PORT, MESSAGE_BYTES = 9000, 32 << 10


def receive(run: Run) -> None:
    run.listen()
    listener = socket.create_server((FAR, PORT))
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
            try:
                while _message(run, connection):
                    pass
            except OSError:
                continue


def _message(run: Run, connection: socket.socket) -> bool:
    while not run.settings["reading"]:
        time.sleep(0.02)
    start_ns, left = boot_ns(), MESSAGE_BYTES
    while left:
        got = connection.recv(left)
        if not got:
            return False
        left -= len(got)
    run.log("receive", start_ns)
    return True


def send(run: Run) -> None:
    run.listen()
    tick = run.every(20)
    while True:
        try:
            with socket.create_connection((FAR, PORT), timeout=20) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
                while True:
                    tick()
                    if run.settings["sending"]:
                        start_ns = boot_ns()
                        connection.sendall(bytes(MESSAGE_BYTES))
                        run.log("send", start_ns)
        except OSError as error:
            run.log("send", boot_ns(), type(error).__name__)
            time.sleep(0.2)


PROGRAMS = (
    LabProgram("receiver", receive, "far", {"reading": True}, (f"{FAR}:{PORT}",), ("sender", "link"), server=True),
    LabProgram("sender", send, settings={"sending": True}, names=(f"{FAR}:{PORT}",), uses=("receiver", "link")),
)
