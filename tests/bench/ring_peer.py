"""The peer of tests/bench/ring.py: BCC's own reader. ``/usr/bin/python3 ring_peer.py FD PROGRAM_TEXT BPF_DIR
RING_PAGES``.

Loads the program, hands the descriptors of the ring and the program to the other end of FD, then reads the ring each
time it is told to (``plain``: a callback that only counts; ``event``: one that looks at a field, as every use of BCC
does) and answers with the records seen and the nanoseconds it took.
"""

from __future__ import annotations

import array
import os
import socket
import sys
import time
from pathlib import Path

sock = socket.socket(fileno=int(sys.argv[1]))
text, bpf_dir, pages = Path(sys.argv[2]).read_text(), sys.argv[3], sys.argv[4]
os.environ["BCC_KERNEL_SOURCE"] = f"{bpf_dir}/include"

from bcc import BPF  # noqa: E402, TID251

module = BPF(text=text, cflags=[f"-I{bpf_dir}", f"-DRING_PAGES={pages}", "-Wno-macro-redefined"])
program = module.load_func("fill", BPF.SOCKET_FILTER)
ring = module["records"]
seen = 0
check = False


def callback(_context: object, data: object, _size: int) -> int:
    global seen
    seen += 1
    if check:
        assert ring.event(data).number < 8
    return 0


ring.open_ring_buffer(callback)
ancillary = array.array("i", [ring.map_fd, program.fd])
sock.sendmsg([b"ready"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, ancillary)])
while order := sock.recv(16):
    seen, check = 0, order == b"event"
    start = time.perf_counter_ns()
    module.ring_buffer_consume()
    sock.send(f"{seen} {time.perf_counter_ns() - start}".encode())
