"""Attaches on the helper's side: uprobes inside executable segments, and the few raw tracepoints that are attached on
demand.
"""

from __future__ import annotations

import ctypes as ct
import errno
import os
import struct

from agent.arch import host
from agent.kernel import syscall

_RAW_TRACEPOINTS = frozenset(
    b"""sys_enter sys_exit tcp_probe sock_send_length sched_switch sched_waking sched_stat_runtime
    block_io_start block_rq_issue block_rq_complete contention_begin contention_end
    mm_vmscan_direct_reclaim_begin mm_vmscan_direct_reclaim_end mm_vmscan_memcg_reclaim_begin
    mm_vmscan_memcg_reclaim_end mm_compaction_begin mm_compaction_end
    netif_receive_skb net_dev_queue consume_skb""".split()
)
_PERF_EVENT_OPEN = host.number("perf_event_open")
_IOC_ENABLE, _IOC_SET_BPF = 0x2400, 0x40042408
_BPF_RAW_TRACEPOINT_OPEN, _BPF_LINK_CREATE, _TRACE_UPROBE_MULTI = 17, 28, 48
_PMU = "/sys/bus/event_source/devices/uprobe"
#: Read before the helper installs its seccomp filter, which refuses uname.
_RELEASE = tuple(int(part) for part in os.uname().release.replace("+", "-").split("-")[0].split(".")[:2])

_libc = ct.CDLL(None, use_errno=True)


def executable_ranges(fd: int) -> list[tuple[int, int]]:
    """File ranges of a 64-bit ELF file's executable segments (of at most 64 program headers). Raises OSError."""
    head = os.pread(fd, 64, 0)
    if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
        raise OSError(errno.ENOEXEC, "not a 64-bit little-endian ELF file")
    at, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
    if size != 56 or at >= 1 << 63:
        raise OSError(errno.ENOEXEC, "odd program headers")
    table = os.pread(fd, 56 * min(count, 64), at)
    headers = [struct.unpack_from("<IIQQQQ", table, i) for i in range(0, len(table) - 55, 56)]
    return [(offset, offset + length) for kind, flags, offset, _, _, length in headers if kind == 1 and flags & 1]


def attach_uprobe(program: int, file: int, offsets: list[int], ret: bool, pid: int = 0) -> list[int]:
    """Attaches for all processes; closing the returned descriptors detaches. Raises OSError, EINVAL for an offset
    outside code.

    Uses one uprobe_multi link if the program was loaded for it (kernel 6.6), else one perf event per offset. pid: only
    that process has the cost, if links can select processes (kernel 6.10; before, only its first thread). Elsewhere the
    calls of other processes arrive too, and the caller filters them.
    """
    ranges = executable_ranges(file)
    if not all(any(low <= o < high for low, high in ranges) for o in offsets):
        raise OSError(errno.EINVAL, "an offset lies outside the executable segments")
    path = ct.create_string_buffer(f"/proc/self/fd/{file}".encode())
    only = pid if pid and knows_processes() else 0
    try:
        return [_multi_link(program, path, offsets, ret, only)]
    except OSError as error:
        if error.errno != errno.EINVAL or only:  # a perf event would cover all processes
            raise
    return _perf_events(program, path, offsets, ret)


def knows_processes() -> bool:
    """Whether a link's pid is that of a process: 46ba0e49b642 (kernel 6.10)."""
    return _RELEASE >= (6, 10)


def _multi_link(program: int, path: ct.Array[ct.c_char], offsets: list[int], ret: bool, pid: int) -> int:
    places = struct.pack(f"<{len(offsets)}Q", *offsets)
    buffer = ct.create_string_buffer(places, len(places))
    head = struct.pack("<IIIIQQQQ", program, 0, _TRACE_UPROBE_MULTI, 0, ct.addressof(path), ct.addressof(buffer), 0, 0)
    return syscall.require(_BPF_LINK_CREATE, head + struct.pack("<III", len(offsets), int(ret), pid))


def _perf_events(program: int, path: ct.Array[ct.c_char], offsets: list[int], ret: bool) -> list[int]:
    with open(f"{_PMU}/type") as pmu:
        kind = int(pmu.read())
    with open(f"{_PMU}/format/retprobe") as form:
        config = (1 << int(form.read().split(":")[1])) if ret else 0
    links: list[int] = []
    try:
        for offset in offsets:
            attr = struct.pack("<IIQQQQQIIQQ", kind, 112, config, 1, 0, 0, 0, 1, 0, ct.addressof(path), offset).ljust(
                112, b"\0"
            )
            pid, cpu, group, cloexec = ct.c_int(-1), ct.c_int(0), ct.c_int(-1), ct.c_ulong(8)
            fd = syscall.call(_PERF_EVENT_OPEN, ct.c_char_p(attr), pid, cpu, group, cloexec)
            links.append(fd)
            for request, value in ((_IOC_SET_BPF, program), (_IOC_ENABLE, 0)):
                if _libc.ioctl(fd, ct.c_ulong(request), ct.c_ulong(value)) < 0:
                    raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))
    except OSError:
        for fd in links:
            os.close(fd)
        raise
    return links


def attach_raw_tracepoints(programs: list[int], names: list[bytes]) -> list[int]:
    """``attach_raw_tracepoint`` for each, in order; all of them or none. Raises OSError."""
    links: list[int] = []
    try:
        for program, name in zip(programs, names, strict=True):
            links.append(attach_raw_tracepoint(program, name))
    except OSError:
        for fd in links:
            os.close(fd)
        raise
    return links


def attach_raw_tracepoint(program: int, name: bytes) -> int:
    """Attaches to an on-demand tracepoint; closing detaches. name: empty for a program that was loaded for its
    tracepoint. Raises OSError.
    """
    if name and name not in _RAW_TRACEPOINTS:
        raise OSError(errno.EPERM, "not a tracepoint that may be asked for")
    text = ct.create_string_buffer(name)
    return syscall.require(_BPF_RAW_TRACEPOINT_OPEN, struct.pack("<QI", ct.addressof(text) if name else 0, program))
