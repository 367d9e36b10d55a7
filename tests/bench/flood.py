"""Records for an agent to drain, as many a second as wanted: a BPF program of the benchmark writes limiter decisions
into the agent's ring.

The agent is the installed one, whole, and cannot tell them from those of its own programs. A uprobe hit costs a trap of
microseconds, so that real decisions at this rate would leave no processor to the agent. As root.
"""

from __future__ import annotations

import ctypes as ct
import mmap
import os
import struct
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from agent.kernel import bpf, syscall
from agent.kernel.loaded_families import BPF_DIR
from agent.kernel.wire_structs import Wire
from agent.limiters.catalogue import seen

_PROG_LOAD, _TEST_RUN, _MAP_GET_FD_BY_ID = 5, 10, 14
_RINGBUF = 27
_SOCKET_FILTER = 1
_KTIME_GET_BOOT_NS, _RINGBUF_OUTPUT = 125, 130
_NO_WAKEUP = 1
#: Between two runs of the program.
_TICK_S = 0.005


def _record() -> bytes:
    """An allowed decision of golang.org/x/time/rate by this process, whose clock is immune to steps."""
    r = np.zeros(1, Wire.read(BPF_DIR / "events.h", BPF_DIR / "limiter_decision.h").dtype("limiter_decision"))
    r["proc"]["pid"] = r["proc"]["tid"] = os.getpid()
    r["proc"]["comm"] = b"flood"
    r["limiter"], r["burst"], r["n"], r["every"], r["ok"], r["reserved"], r["duration_ns"] = (
        0xC000010000,
        10,
        1,
        1,
        1,
        1,
        1000,
    )
    r["limit"], r["tokens"] = np.float64(1e6).view(np.uint64), np.float64(5).view(np.uint64)
    r["library"] = list(seen()).index("golang.org/x/time/rate")
    r["now_wall"] = r["last_wall"] = r["act_wall"] = 1 << 63
    return r.tobytes()


def _program(ring: int) -> bytes:
    """Instructions (struct bpf_insn) that write one record, with the time of now, into the ring; 0 where it was
    taken.
    """
    record = _record()
    top = -len(record)

    def one(code: int, dst: int = 0, src: int = 0, off: int = 0, imm: int = 0) -> bytes:
        return struct.pack("<BBhi", code, src << 4 | dst, off, imm)

    def load(dst: int, value: int, src: int = 0) -> bytes:
        low, high = struct.unpack("<ii", struct.pack("<Q", value))
        return one(0x18, dst, src, imm=low) + one(0, imm=high)

    words = struct.unpack(f"<{len(record) // 8}Q", record)
    out = b"".join(load(1, word) + one(0x7B, 10, 1, top + 8 * i) for i, word in enumerate(words))
    out += one(0x85, imm=_KTIME_GET_BOOT_NS) + one(0x7B, 10, 0, top)
    out += (
        load(1, ring, src=1)
        + one(0xBF, 2, 10)
        + one(0x07, 2, imm=top)
        + one(0xB7, 3, imm=len(record))
        + one(0xB7, 4, imm=_NO_WAKEUP)
    )
    return out + one(0x85, imm=_RINGBUF_OUTPUT) + one(0x95)


def _call(command: int, data: bytes) -> bytes:
    attr = syscall.attributes(data)
    if (result := syscall.bpf(command, attr)) < 0:
        raise OSError(-result, f"bpf command {command}: {os.strerror(-result)}")
    return struct.pack("<i", result) + attr.raw


def _ring_of(agent: int) -> int:
    """A descriptor of the agent's largest ring, which is that of limiter decisions."""
    found = []
    for info in Path(f"/proc/{agent}/fdinfo").iterdir():
        try:
            facts = dict(line.split(":\t", 1) for line in info.read_text().splitlines() if ":\t" in line)
        except FileNotFoundError:  # closed meanwhile
            continue
        if facts.get("map_type") == str(_RINGBUF):
            found.append((int(facts["max_entries"]), int(facts["map_id"])))
    return int(struct.unpack("<i", _call(_MAP_GET_FD_BY_ID, struct.pack("<I", max(found)[1]))[:4])[0])


class _Ring:
    """How full the ring is. See agent/kernel/ring.py."""

    def __init__(self, fd: int, record_bytes: int) -> None:
        self.stride = -(-(8 + record_bytes) // 8) * 8
        self.size = bpf.map_info(fd)[3]
        self._pages = [
            mmap.mmap(fd, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ, offset=at) for at in (0, mmap.PAGESIZE)
        ]

    def room(self) -> int:
        """Records that can be written now."""
        consumer, producer = (struct.unpack_from("<Q", page)[0] for page in self._pages)
        return int((self.size - (producer - consumer)) // self.stride) - 1


def flood(agent: int, per_s: int, out: Connection) -> None:
    """Sends "filling", fills until the other end says anything, then sends how many records were written: at most as
    many as the agent takes.
    """
    fd = _ring_of(agent)
    ring = _Ring(fd, len(_record()))
    code, licence = ct.create_string_buffer(_program(fd)), ct.create_string_buffer(b"GPL")
    attr = struct.pack(
        "<IIQQIIQ", _SOCKET_FILTER, (len(code) - 1) // 8, ct.addressof(code), ct.addressof(licence), 0, 0, 0
    )
    program = struct.unpack("<i", _call(_PROG_LOAD, attr)[:4])[0]
    packet = ct.create_string_buffer(64)
    out.send("filling")
    last, written, due = time.monotonic(), 0, 0.0
    while not out.poll():
        now = time.monotonic()
        due, last = min(due + (now - last) * per_s, per_s / 50), now
        n = min(int(due), ring.room())
        if n > 0:
            run = struct.pack("<4IQQII", program, 0, len(packet), 0, ct.addressof(packet), 0, n, 0)
            if struct.unpack_from("<I", _call(_TEST_RUN, run), 8)[0]:
                raise SystemExit("the agent's ring was full")
            written, due = written + n, due - n
        time.sleep(_TICK_S)
    out.send(written)
