"""Chains of two and three calls over whatever programs talk with: buyers ask gate (nginx), which asks kiosk. Kiosk asks

- bank by TCP, which asks vault on the far side,
- shelf by a Unix socket,
- packer by a pair of pipes, one request at a time,
- and writes notes to scribe, a log daemon behind a Unix socket.

For seats it locks a file, which usher locks, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from agent.common.clocks import boot_ns
from agent.lab.program import FAR, OTHER, LabProgram, Run

GATE_PORT, KIOSK_PORT, BANK_PORT, VAULT_PORT = 8090, 8091, 8092, 8093
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n"
FAILED = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
PATIENCE_S, PER_S, NOTE_BYTES = 15.0, 5.0, 100_000
CONFIG = """
daemon off; master_process off; pid {own}/pid; error_log stderr crit;
events {{ worker_connections 256; }}
http {{
  access_log off; proxy_read_timeout 20s; proxy_connect_timeout 20s;
  client_body_temp_path {own}/a; proxy_temp_path {own}/b; fastcgi_temp_path {own}/c;
  uwsgi_temp_path {own}/d; scgi_temp_path {own}/e;
  server {{ listen {at}:{port}; location / {{ proxy_pass http://{at}:{kiosk}; }} }}
}}
"""
SETTINGS = {"nap_s": 0.0, "spin_s": 0.0}


def work(run: Run) -> None:
    """What a node does for each request: usually nothing that takes time."""
    if run.settings["nap_s"]:
        time.sleep(run.settings["nap_s"])
    until = time.monotonic() + run.settings["spin_s"]
    while time.monotonic() < until:
        pass


def gate(run: Run) -> None:
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise FileNotFoundError("nginx is not installed (apt install nginx-light)")
    config = run.directory / "nginx.conf"
    config.write_text(CONFIG.format(own=run.directory, at=OTHER, port=GATE_PORT, kiosk=KIOSK_PORT))
    os.execve(program, [program, "-p", str(run.directory), "-c", str(config)], {"PATH": os.environ.get("PATH", "")})


def _serve(listener: socket.socket, answer: Callable[[socket.socket], None]) -> None:
    def one(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            answer(connection)

    while True:
        threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()


def _asked(family: int, address: tuple[str, int] | str) -> bytes:
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(address)
        connection.sendall(b"?")
        return connection.recv(16)


def server(port: int, host: str, run: Run, asks: tuple[str, int] | None = None) -> None:
    """bank and vault: works, asks another one if there is one, and answers."""
    run.listen()

    def answer(connection: socket.socket) -> None:
        connection.recv(16)
        work(run)
        if asks:
            _asked(socket.AF_INET, asks)
        connection.sendall(b"!")

    _serve(socket.create_server((host, port), backlog=64), answer)


def shelf(run: Run) -> None:
    run.listen()

    def answer(connection: socket.socket) -> None:
        connection.recv(16)
        work(run)
        connection.sendall(b"!")

    _serve(_unix(run.shared / "shelf.sock"), answer)


def _unix(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    listener.bind(str(path))
    path.chmod(0o777)
    listener.listen(64)
    return listener


def scribe(run: Run) -> None:
    """Reads what kiosk writes, one piece after the other."""
    run.listen()

    def read(connection: socket.socket) -> None:
        while connection.recv(1 << 20):
            work(run)

    _serve(_unix(run.shared / "scribe.sock"), read)


def packer(run: Run) -> None:
    run.listen()
    asked, answered = _pipes(run.shared)
    while True:
        os.read(asked, 1)
        work(run)
        os.write(answered, b"!")


def _pipes(shared: Path) -> list[int]:
    """Descriptors of the pipe for requests and of that for answers. Whoever comes first makes them."""
    found = []
    for name in ("parcels", "packed"):
        path = shared / name
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path)
            path.chmod(0o666)
        found.append(os.open(path, os.O_RDWR))
    return found


def usher(run: Run) -> None:
    """Holds the lock for ``hold_s``, five times a second."""
    run.listen()
    seats = _seats(run.shared)
    while True:
        fcntl.flock(seats, fcntl.LOCK_EX)
        time.sleep(run.settings["hold_s"])
        fcntl.flock(seats, fcntl.LOCK_UN)
        time.sleep(0.2)


def _seats(shared: Path) -> int:
    seats = os.open(shared / "seats", os.O_RDWR | os.O_CREAT, 0o666)
    with contextlib.suppress(PermissionError):
        os.fchmod(seats, 0o666)
    return seats


def kiosk(run: Run) -> None:
    run.listen()
    asked, answered = _pipes(run.shared)
    packing, noting = threading.Lock(), threading.Lock()
    notes: list[socket.socket] = []

    def parcel() -> None:
        with packing:
            os.write(asked, b"?")
            os.read(answered, 1)

    def note() -> None:
        with noting:
            if not notes:
                notes.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                notes[0].connect(str(run.shared / "scribe.sock"))
            notes[0].sendall(bytes(NOTE_BYTES))

    def seat() -> None:
        seats = _seats(run.shared)
        fcntl.flock(seats, fcntl.LOCK_EX)
        os.close(seats)

    ways = {
        b"bank": lambda: _asked(socket.AF_INET, (OTHER, BANK_PORT)),
        b"shelf": lambda: _asked(socket.AF_UNIX, str(run.shared / "shelf.sock")),
        b"parcel": parcel,
        b"note": note,
        b"seat": seat,
    }

    def answer(connection: socket.socket) -> None:
        request = connection.recv(4096).split(b" ", 2)
        if len(request) < 3:
            return
        path = request[1].strip(b"/")
        try:
            work(run)
            ways[path]()
        except OSError:
            connection.sendall(FAILED)
            return
        connection.sendall(ANSWER)

    _serve(socket.create_server((OTHER, KIOSK_PORT), backlog=64), answer)


def buyers(run: Run) -> None:
    """Each way is asked for as often, whether or not earlier requests were answered."""
    run.listen()

    def one(way: str) -> None:
        start_ns = boot_ns()
        try:
            with socket.create_connection((OTHER, GATE_PORT), timeout=PATIENCE_S) as connection:
                connection.sendall(b"GET /%s HTTP/1.0\r\nHost: gate\r\n\r\n" % way.encode())
                done = "ok" if b" 200 " in connection.recv(4096) else "failed"
        except OSError as error:
            done = type(error).__name__
        run.log(way, start_ns, done)

    def ask(way: str) -> None:
        tick = run.every(PER_S)
        while True:
            tick()
            threading.Thread(target=one, args=(way,), daemon=True).start()

    for way in ("bank", "shelf", "parcel", "note", "seat"):
        threading.Thread(target=ask, args=(way,), daemon=True).start()
    threading.Event().wait()


def _named(*ports: int) -> tuple[str, ...]:
    return tuple(f"{OTHER}:{port}" for port in ports)


_of_chain = partial(LabProgram, system="chains", server=True)
PROGRAMS = (
    _of_chain(
        "vault",
        partial(server, VAULT_PORT, FAR),
        "far",
        settings=SETTINGS,
        names=(f"{FAR}:{VAULT_PORT}",),
        uses=("link",),
    ),
    _of_chain(
        "bank",
        partial(server, BANK_PORT, OTHER, asks=(FAR, VAULT_PORT)),
        settings=SETTINGS,
        names=_named(BANK_PORT),
        uses=("vault",),
    ),
    _of_chain("shelf", shelf, settings=SETTINGS),
    _of_chain("scribe", scribe, settings=SETTINGS),
    _of_chain("packer", packer, settings=SETTINGS),
    _of_chain("usher", usher, settings={"hold_s": 0.001}),
    _of_chain(
        "kiosk",
        kiosk,
        settings=SETTINGS,
        names=_named(KIOSK_PORT),
        uses=("bank", "shelf", "scribe", "packer", "usher"),
        listens=(OTHER, KIOSK_PORT),
    ),
    _of_chain("gate", gate, names=_named(GATE_PORT), uses=("kiosk",), comm="nginx"),
    LabProgram("buyers", buyers, system="chains", uses=("gate",)),
)
