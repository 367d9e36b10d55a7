"""A DNS server, by UDP and TCP: every name has the far side's address, with a TTL of 0. One name's answer does not fit
into a datagram.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time

from agent.lab.program import FAR, LabProgram, Run

PORT = 53
#: By UDP its answer is truncated, so clients ask again by TCP.
LONG = "long.policy.lab"
_TRUNCATED = 0x0200


def answer(query: bytes, by_tcp: bool) -> bytes:
    """The answer to a query of one question: an A record if it asks for one, else none. Raises IndexError for a
    malformed query.
    """
    at = 12
    while query[at]:
        at += query[at] + 1
    question = query[12 : at + 5]
    wanted = struct.unpack_from("!H", question, len(question) - 4)[0]
    cut = not by_tcp and question[:5] == b"\x04long"
    records = b"\xc0\x0c\0\x01\0\x01\0\0\0\0\0\x04" + socket.inet_aton(FAR) if wanted == 1 and not cut else b""
    return (
        query[:2] + struct.pack("!5H", 0x8580 | (_TRUNCATED if cut else 0), 1, bool(records), 0, 0) + question + records
    )


def serve(run: Run) -> None:
    run.listen()
    stream = socket.create_server((FAR, PORT))
    threading.Thread(target=_by_tcp, args=(run, stream), daemon=True).start()
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind((FAR, PORT))
    while True:
        query, client = datagrams.recvfrom(4096)
        if random.random() >= run.settings["loss"]:
            threading.Timer(run.settings["delay_s"], datagrams.sendto, (answer(query, by_tcp=False), client)).start()


def _by_tcp(run: Run, stream: socket.socket) -> None:
    while True:
        connection, _ = stream.accept()
        threading.Thread(target=_answer, args=(run, connection), daemon=True).start()


def _answer(run: Run, connection: socket.socket) -> None:
    """The query is one small segment: the length, then the message."""
    with connection, contextlib.suppress(OSError, IndexError):
        query = connection.recv(4096)[2:]
        time.sleep(run.settings["delay_s"])
        reply = answer(query, by_tcp=True)
        connection.sendall(len(reply).to_bytes(2, "big") + reply)


PROGRAMS = (LabProgram("dns", serve, "far", {"delay_s": 0.0, "loss": 0.0}, (f"{FAR}:{PORT}",), server=True),)
