"""A TLS 1.2 server of our own that can be slow before each of its two flights of the handshake. It uses memory BIOs,
like asyncio and Node.

It serves few clients at once, like servers with a pool of workers: slow clients make others wait.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time

from agent.common.clocks import boot_ns
from agent.lab.program import FAR, LabProgram, Run

PORT, WORKERS, PATIENCE_S = 8444, 2, 10.0


def serve(run: Run) -> None:
    run.listen()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(run.shared / "tls.crt", run.shared / "tls.key")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET
    listener = socket.create_server((FAR, PORT), backlog=64)
    for _ in range(WORKERS - 1):
        threading.Thread(target=_work, args=(run, context, listener), daemon=True).start()
    _work(run, context, listener)


def _work(run: Run, context: ssl.SSLContext, listener: socket.socket) -> None:
    while True:
        _serve_one(run, context, listener.accept()[0])


def _serve_one(run: Run, context: ssl.SSLContext, connection: socket.socket) -> None:
    start_ns = boot_ns()
    arriving, leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
    secure = context.wrap_bio(arriving, leaving, server_side=True)
    connection.settimeout(PATIENCE_S)
    with connection:
        try:
            flight, done = 0, False
            while not done:
                if not (data := connection.recv(65536)):
                    return
                arriving.write(data)
                try:
                    secure.do_handshake()
                    done = True
                except ssl.SSLWantReadError:
                    pass
                if leaving.pending:
                    flight += 1
                    time.sleep(run.settings[f"flight{min(flight, 2)}"])
                    connection.sendall(leaving.read())
            arriving.write(connection.recv(65536))
            secure.read(4096)
            secure.write(b"HTTP/1.0 200 OK\r\n\r\nok\n")
            connection.sendall(leaving.read())
            run.log("serve", start_ns)
        except OSError:
            return


PROGRAMS = (LabProgram("tls-server", serve, "far", {"flight1": 0.0, "flight2": 0.0}, (f"{FAR}:{PORT}",), server=True),)
