"""Run as root in network and mount namespaces of its own: a small DNS server, which ends with it, and then the program
that it becomes.

    unshare -n -m python3 dns_place.py OPTIONS PROGRAM ARGUMENT...

OPTIONS: the lines of resolv.conf, separated by semicolons. What a name's first label says is what the server does:
``slow`` answers after 30 ms, ``nx``,
``fail`` and ``denied`` with these codes, ``lost`` not to the first question for that name, ``gone`` never.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

ADDRESS, SLOW_S, USUAL_S = "127.0.0.53", 0.03, 0.005  #: so that whoever asks has to wait
CODES = {b"nx": 3, b"fail": 2, b"denied": 5}


def serve(datagrams: socket.socket) -> None:
    seen: set[bytes] = set()
    while True:
        query, client = datagrams.recvfrom(4096)
        end = 12
        while query[end]:
            end += query[end] + 1
        question, what = query[12 : end + 5], query[13 : 13 + query[12]].partition(b"-")[0]
        new = question not in seen
        seen.add(question)
        if what == b"gone" or (what == b"lost" and new):
            continue
        time.sleep(SLOW_S if what == b"slow" else USUAL_S)
        code, wanted = CODES.get(what, 0), question[-4:-2] == b"\0\1" and what not in CODES
        record = b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4\x7f\0\0\1" if wanted else b""
        datagrams.sendto(
            query[:2] + struct.pack("!5H", 0x8180 | code, 1, bool(record), 0, 0) + question + record, client
        )


def main() -> None:
    options, *program = sys.argv[1:]
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.NamedTemporaryFile("w") as settings:
        settings.write(options.replace(";", "\n") + "\n")
        settings.flush()
        os.chmod(settings.name, 0o644)
        subprocess.run(["mount", "--bind", settings.name, os.path.realpath("/etc/resolv.conf")], check=True)
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind((ADDRESS, 53))
    started, ready = os.pipe()
    if not os.fork():
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: set before the other goes on, and maybe ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.write(ready, b"1")
        serve(datagrams)
    os.read(started, 1)
    datagrams.close()
    os.execvp(program[0], program)


if __name__ == "__main__":
    main()
