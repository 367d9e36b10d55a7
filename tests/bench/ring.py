"""Reading a ring: ``python -m tests.bench.ring [--pairs N]``. As root.

The agent's reader (agent/kernel/ring.py; a copied, decoded numpy array of all records) against BCC's own Python
callback on the same ring, filled before each turn with the same number of the same records by the same kernel program.
Both must see each.
"""

from __future__ import annotations

import contextlib
import ctypes as ct
import os
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from agent.kernel import syscall
from agent.kernel.loaded_families import BPF_DIR
from agent.kernel.loader_process import SYSTEM_PYTHON
from agent.kernel.ring import RingReader
from agent.kernel.wire_structs import Wire
from tests.bench.common import arguments, interleaved, ratio, report

_HERE = Path(__file__).parent
_SOURCE = _HERE / "ring.bpf.c"
_TEST_RUN = 10
RING_PAGES = 512


def fill(program: int, records: int) -> None:
    """Runs the program once a record. Raises OSError; SystemExit where the ring was full."""
    packet = ct.create_string_buffer(64)
    fields = (program, 0, len(packet), 0, ct.addressof(packet), 0, records, 0)
    attr = syscall.attributes(struct.pack("<4IQQII", *fields))
    if (err := syscall.bpf(_TEST_RUN, attr)) < 0:
        raise OSError(-err, f"test run: {os.strerror(-err)}")
    if struct.unpack_from("<I", attr.raw, 4)[0]:
        raise SystemExit("the ring was full")


@contextlib.contextmanager
def peer() -> Iterator[tuple[socket.socket, int, int]]:
    """BCC in its own process: (its socket, ring, program)."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [
        SYSTEM_PYTHON,
        "-I",
        str(_HERE / "ring_peer.py"),
        str(theirs.fileno()),
        str(_SOURCE),
        str(BPF_DIR),
        str(RING_PAGES),
    ]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        try:
            _, fds, _, _ = socket.recv_fds(ours, 16, 2)
            if len(fds) != 2:
                raise SystemExit(f"BCC could not load the program, status {process.wait()}")
            yield ours, fds[0], fds[1]
        finally:
            ours.close()


class Readers:
    def __init__(self, sock: socket.socket, ring: int, program: int) -> None:
        self._sock, self._program = sock, program
        self._reader = RingReader(ring, Wire.read(_SOURCE).dtype("bench_record"))
        self.capacity = self._reader.size // self._reader.stride - 1

    def ours(self, records: int) -> float:
        """Records a second; the fastest of some turns would flatter, so one turn is one value."""
        fill(self._program, records)
        start = time.perf_counter_ns()
        rows = self._reader.drain()
        took = time.perf_counter_ns() - start
        if (
            len(rows) != records
            or not np.all(rows["number"] < 8)
            or not np.all(np.diff(rows["t_ns"].astype(np.int64)) >= 0)
        ):
            raise SystemExit(f"{len(rows)} of {records} records")
        return records / took * 1e9

    def bcc(self, records: int, how: str) -> float:
        fill(self._program, records)
        self._sock.send(how.encode())
        seen, took = map(int, self._sock.recv(64).split())
        if seen != records:
            raise SystemExit(f"BCC saw {seen} of {records} records")
        return records / took * 1e9


def main() -> None:
    given = arguments(__doc__)
    with peer() as (sock, ring, program):
        readers = Readers(sock, ring, program)
        for records in (readers.capacity, 1000, 100):
            sides = {
                "ours": lambda n=records: readers.ours(n),
                "plain": lambda n=records: readers.bcc(n, "plain"),
                "event": lambda n=records: readers.bcc(n, "event"),
            }
            interleaved(sides, 1)
            took = interleaved(sides, given.pairs)
            target = ">= 30" if records == readers.capacity else "-"
            for how, peer_name in (
                ("plain", "BCC, a callback that only counts"),
                ("event", "BCC, a callback that reads one field"),
            ):
                speed = f"{np.median(took['ours']) / 1e6:.1f} against {np.median(took[how]) / 1e6:.2f} M/s"
                report(
                    f"Ring reading, {records} records at a time",
                    f"{ratio(took['ours'], took[how]).text('.1f')}, {speed}",
                    peer_name,
                    target,
                )


if __name__ == "__main__":
    main()
