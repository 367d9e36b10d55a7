"""System call timing: blocked time always, all calls in a window each second or all the time; see bpf/syscalls.bpf.c
and bpf/syscalls_timed.bpf.c.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agent.arch import host
from agent.batch import Batch
from agent.columns import NULL_I64
from agent.common.fairness import UpperBound, earlier
from agent.contracts import Finishing
from agent.kernel import bpf
from agent.kernel.loaded_families import Family
from agent.kernel.probe import Aggregate, Parts, Probe, Program, Ring
from agent.kernel.ring import SharedArray
from agent.kernel.sampling import attach, degrade
from agent.kernel.settings import ProbeSettings
from agent.kernel.wire_structs import OUTSIDE, decode, make_peer
from agent.limiters.intake import process_identity
from agent.tables import TABLES

if TYPE_CHECKING:
    from agent.contracts import Source
    from agent.kernel.helper_client import Helper
    from agent.kernel.kernel_source import KernelSource
    from agent.kernel.sampling import SamplingWindow

_SLOW, _WAITING, _BY_FD, _WRITES_FD, _POLLS, _IDLE = range(1, 7)
_FD_TYPES = np.array([b"", b"file", b"directory", b"block device", b"char device", b"pipe", b"socket", b"anon"], "S16")
_ANON = len(_FD_TYPES) - 1

#: Calls that wait for input, time or another program; by name. Calls that are neither here nor below count as slow.
_WAIT = """futex futex_waitv wait4 waitid waitpid io_getevents io_pgetevents io_uring_enter semop semtimedop msgrcv
    msgsnd mq_timedreceive mq_timedsend accept accept4 ptrace restart_syscall ipc socketcall"""
#: ... and those of them that wake nobody else: a thread that is woken meanwhile is woken by an interrupt.
_IDLES = """epoll_wait epoll_pwait epoll_pwait2 select pselect6 _newselect nanosleep clock_nanosleep futex_wait pause
    rt_sigsuspend sigsuspend rt_sigtimedwait sched_yield"""
#: Calls that wait when the descriptor is a socket, pipe, terminal, eventfd, timerfd ..., and are slow on files.
_READ = "read readv pread64 preadv preadv2 recvfrom recvmsg recvmmsg getdents getdents64 splice tee ioctl"
#: Calls that are slow when they block, whatever the descriptor is, and whose descriptor is worth naming.
_WRITE = """write writev pwrite64 pwritev pwritev2 sendto sendmsg sendmmsg connect fsync fdatasync sync_file_range flock
    fcntl fcntl64 ftruncate fallocate sendfile sendfile64 vmsplice close shutdown fchmod fchown fstat lseek"""
#: What is added to the number of a 32-bit program's call (SYSCALLS_COMPAT in the C source).
_COMPAT = 512
#: In place of a call's number (SYSCALLS_FAULT).
_FAULT = 1023
#: No window is open: calls begun before now are none of the next one's. 0 stands for ``full``.
_NEVER = 2**64 - 1
#: Calls of at least this length are reported while they go on, of so many threads. Each look costs two microseconds.
SO_FAR_NS, _THREADS, _FARTHEST = 1_000_000_000, 1024, 8192
_LOCKS = (b"flock", b"fcntl", b"fcntl64")
_SLEEPS = (b"nanosleep", b"clock_nanosleep")
#: For docs/limits.md.
BOUNDS = (
    UpperBound(
        "findings",
        "threads that are looked at for calls that go on, a second",
        f"{_THREADS:,}, shared evenly between the processes with a symptom",
        f"looked at in a later second, up to {_FARTHEST:,} of a process",
        "-",
    ),
)
#: In this order: a call is timed once both its ends are seen.
_TIMED = ("syscalls_on_sys_exit", "syscalls_on_sys_enter")


def processors() -> int:
    """One more than the highest number that a processor may have."""
    return int(Path("/sys/devices/system/cpu/possible").read_text().replace("-", ",").rpartition(",")[2]) + 1


@cache
def names() -> np.ndarray:
    """System call names by number, 32-bit programs' from 512 on; shape (1024,), S24; empty where there is none."""
    table = np.zeros(2 * _COMPAT, "S24")
    for first, machine in ((0, host.MACHINE), (_COMPAT, host.COMPAT)):
        for number, name in host.syscalls(machine).items():
            table[first + number] = name.encode()
    table[_FAULT] = b"page_fault"
    return table


def classes() -> np.ndarray:
    """What a blocking call is (the enum in the C source), by number as in ``names``; u64."""
    out = np.full(2 * _COMPAT, _SLOW, np.uint64)
    plain = [name.removesuffix(b"_time64") for name in names().tolist()]
    for group, value in (
        (_WAIT, _WAITING),
        (_READ, _BY_FD),
        (_WRITE, _WRITES_FD),
        (_IDLES, _IDLE),
        ("poll ppoll", _POLLS),
    ):
        out[np.isin(plain, group.encode().split())] = value
    return out


def _name(nr: np.ndarray) -> np.ndarray:
    known: np.ndarray = names()[np.minimum(nr, 2 * _COMPAT - 1)]
    return known


def _number(nr: np.ndarray) -> np.ndarray:
    """As the program's own ABI has it."""
    number = nr.astype(np.int64)
    return np.where(number == _FAULT, NULL_I64, np.where(number < 2 * _COMPAT, number % _COMPAT, number))


def decode_events(records: np.ndarray) -> Batch:
    """syscalls_event records -> slow_syscall rows."""
    batch = decode(records, "slow_syscall")
    rows = batch.rows
    rows["syscall"], rows["nr"] = _name(records["nr"]), _number(records["nr"])
    rows["peer"] = make_peer(records["peer_addr"], records["peer_port"])
    named = _FD_TYPES[np.minimum(records["inode_type"], len(_FD_TYPES) - 1)]
    unnamed = records["inode_type"] == _ANON
    rows["fd_type"], rows["file"] = named, records["fd_name"]
    if unnamed.any():
        rows["fd_type"][unnamed] = [name.lower().strip(b"[]") for name in records["fd_name"][unnamed].tolist()]
        rows["file"][unnamed] = b""
    rows["fd_type"][records["fuse"] > 0] = b"fuse"
    rows["waker_comm"][rows["waker_pid"] == NULL_I64] = b""
    ret = records["ret"].view(np.int64)
    rows["ret"] = np.where(records["basis"] == 0, ret, NULL_I64)
    return batch


def merge(keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Elements of equal keys (several processors', and the maps') as one each."""
    unique, first, of = np.unique(
        np.ascontiguousarray(keys).view(f"V{keys.itemsize}"), return_index=True, return_inverse=True
    )
    if len(unique) == len(keys):
        return keys, values
    order, out = np.argsort(of, kind="stable"), values[first]
    starts = np.searchsorted(of[order], np.arange(len(unique)))
    for name in ("count", "errors", "sum_ns", "run_queue_ns", "hist"):
        out[name] = np.add.reduceat(values[name][order], starts, axis=0)
    out["max_ns"] = np.maximum.reduceat(values["max_ns"][order], starts)
    return keys[first], out


def decode_latency(keys: np.ndarray, values: np.ndarray, interval_ns: int, t_ns: int) -> Iterator[Batch]:
    """Aggregated elements -> syscall_latency rows."""
    keys, values = merge(keys, values)
    table = TABLES["syscall_latency"]
    batch = decode(values, "syscall_latency")
    rows = batch.rows
    rows["t_ns"], rows["interval_ns"] = t_ns, interval_ns
    rows["basis"], rows["nr"] = keys["basis"], _number(keys["nr"])
    rows["kind"] = keys["kind"].view(np.int8)
    rows["syscall"] = _name(keys["nr"])
    rows["peer"] = make_peer(keys["peer_addr"], keys["peer_port"])
    blocked = rows["basis"] == table.code("basis", "blocked")
    rows["errors"][blocked] = NULL_I64
    rows["run_queue_ns"][~blocked] = NULL_I64
    rows["sample_rate"] = 1.0
    yield batch


class PendingCalls(Finishing):
    """Takes slow calls out of the kernel whose thread has not left the CPU since, and so has not handed them over."""

    name = "syscalls.pending"
    AGE_NS = 100_000_000

    def __init__(self, kernel: KernelSource, family: Family) -> None:
        dtype = kernel.loaded.wire.dtype("syscalls_event")
        self._map = bpf.HashMap(family.maps["syscalls_pending"], kernel.loaded.wire.dtype("syscalls_call"), dtype)

    def drain(self, now_ns: int) -> Iterable[Batch]:
        yield from self._take(now_ns - self.AGE_NS)

    def finish(self, now_ns: int, wait: Callable[[float], None]) -> Iterable[Batch]:
        """All that wait, however young: for the end of a run."""
        return list(self._take(now_ns))

    def _take(self, until_ns: int) -> Iterator[Batch]:
        keys, values = self._map.read()
        ends = values["t_ns"].astype(np.int64)  # 0 while a program is writing it
        old = np.flatnonzero((ends > 0) & (ends < until_ns) & (values["goes_on"] == 0))
        mine = [i for i in old if bpf.delete(self._map.fd, keys[i].tobytes())]
        if mine:
            yield decode_events(values[mine])

    def close(self) -> None: ...


class CallsSoFar:
    """A source of calls that go on, of the processes that ``pids`` gives: those that last for a second, of threads that
    wait for something that the call shows. Each is a row when it is a tenth longer, so that there are few of a call
    that lasts for hours. Where the kernel does not run programs for us, there are none, and the family says so.
    """

    name = "syscalls.so_far"
    _PROGRAM = "on_syscalls_so_far"

    def __init__(self, kernel: KernelSource, family: Family, pids: Callable[[], Iterable[int]]) -> None:
        self._family, self._pids = family, pids
        self._run = bpf.OwnRun(family.programs[self._PROGRAM], 2)
        self._run.args[1] = SO_FAR_NS
        self._found = SharedArray(family.maps["syscalls_so_far"], kernel.loaded.wire.dtype("syscalls_event")).values
        self._due: dict[tuple[int, int], int] = {}  # (thread, start of its call): when it is a row again
        self._begin: dict[int, int] = {}  # of a process with many threads: how many were looked at
        self._works = True

    def drain(self, now_ns: int) -> Iterable[Batch]:
        found = []
        try:
            for tid in self._threads() if self._works else ():
                self._run.args[0] = tid
                if self._run():
                    found.append(self._found.copy())
        except OSError as error:
            self._works = False
            self._family.problem(self._PROGRAM, f"{self._PROGRAM}: {error} (not seen: calls, until they have ended)")
        batch = decode_events(np.concatenate(found)) if found else None
        if batch is None:
            self._due = {}
            return
        rows = batch.rows[_shows(batch.rows)]
        calls = list(zip(rows["tid"].tolist(), (rows["t_ns"] - rows["duration_ns"]).tolist(), strict=True))
        due = np.array([now_ns >= self._due.get(call, 0) for call in calls], np.bool_)
        again = (rows["t_ns"] + rows["duration_ns"] // 10).tolist()
        self._due = {
            call: at if is_due else self._due[call] for call, at, is_due in zip(calls, again, due, strict=True)
        }
        if due.any():
            rows = rows[due]
            _name_holders(rows)
            yield Batch(batch.table, rows)

    def _threads(self) -> Iterator[int]:
        """Of each process as many as of the others; where there are more, the next ones the next time."""
        pids, left, begin = [*self._pids()], _THREADS, self._begin
        self._begin = {}
        for n, pid in enumerate(pids):
            share, at = left // (len(pids) - n), begin.get(pid, 0)
            with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/task") as threads:
                tids = [int(thread.name) for thread in islice(threads, at, at + share)]
                left -= len(tids)
                self._begin[pid] = at + share if len(tids) == share and at < _FARTHEST else 0
                yield from tids

    def close(self) -> None: ...


def _name_holders(rows: np.ndarray) -> None:
    """For calls that are older than the agent: fills in who holds the lock that they wait for, from /proc/locks
    (proc(5)), which has a lock's line, then those of the processes that wait for it. A process that waits for the locks
    of several has no holder.
    """
    older = np.flatnonzero(np.isin(rows["syscall"], _LOCKS) & (rows["holder_pid"] == NULL_I64))
    if not len(older):
        return
    holder, holders = 0, dict[tuple[bool, int], set[int]]()
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/locks").read_text().splitlines():
            _, *words = line.split()
            waits = words[:1] == ["->"]
            kind, *_, number, _, _, _ = words[waits:]
            if waits:
                holders.setdefault((kind == "FLOCK", int(number)), set()).add(holder)
            else:
                holder = int(number)
    for i in older.tolist():
        pid, *more = holders.get((rows["syscall"][i] == b"flock", int(rows["pid"][i])), {0})
        if pid > 0 and not more and (its := process_identity(pid)).start_ns != NULL_I64:
            rows["holder_pid"][i], rows["holder_start_ns"][i], rows["holder_comm"][i] = pid, its.start_ns, its.comm


def _shows(rows: np.ndarray) -> np.ndarray:
    """Which of these calls show what they wait for: all that wait for no input, else a peer, a lock, or a time."""
    seen = (rows["kind"] != TABLES["slow_syscall"].code("kind", "waiting")) | (rows["holder_pid"] > 0)
    return np.asarray(seen | (rows["peer"] != np.zeros(1, "V18")) | np.isin(rows["syscall"], _SLEEPS))


class Sampling:
    """Timing of all calls in the window that opens each second."""

    def __init__(self, kernel: KernelSource, family: Family, window: SamplingWindow) -> None:
        self._kernel = kernel
        self._observed_ns: dict[int, int] = {}  # by the start of the interval
        kernel.adjust["syscall_latency"] = self._mark
        window.add(family, _TIMED, self._opens, self._closed)

    def _opens(self, start_ns: int) -> None:
        self._kernel.control["sample_from_ns"] = start_ns

    def _closed(self, took_ns: int) -> None:
        self._kernel.control["sample_from_ns"] = _NEVER
        live = self._kernel.live_since_ns
        self._observed_ns = dict([*self._observed_ns.items()][-2:])
        self._observed_ns[live] = self._observed_ns.get(live, 0) + took_ns

    def _mark(self, rows: np.ndarray) -> None:
        """The share of their interval, one for all rows, in which a window was open."""
        sampled = rows["basis"] == TABLES["syscall_latency"].code("basis", "sampled")
        if sampled.any():
            interval_ns = int(rows["interval_ns"][0])
            rows["sample_rate"][sampled] = self._observed_ns.get(int(rows["t_ns"][0]) - interval_ns, 0) / interval_ns


def _time_all(kernel: KernelSource, family: Family, helper: Helper, tune: np.ndarray) -> None:
    """Timing of all calls until the programs are released with the family's others."""
    kernel.control["sample_from_ns"] = 0
    for function in _TIMED:
        try:
            (family.links[function],) = attach(helper, (family, function))
        except OSError as error:
            degrade(family, function, error)
            return
    tune["full"] = 1


def _tune(kernel: KernelSource, family: Family) -> np.ndarray:
    return SharedArray(family.maps["syscalls_tune"], kernel.loaded.wire.dtype("syscalls_tune")).values


def setup(family: Family, kernel: KernelSource, helper: Helper, targets: Any, parts: Parts) -> Iterable[Source]:
    """parts: ``settings`` (ProbeSettings) and ``window``."""
    SharedArray(family.maps["syscalls_class"], "<u8").values[:] = classes()
    tune = _tune(kernel, family)
    tune["flag_mask"] = measure_flag(tune, int(np.flatnonzero(names() == b"write")[0]))
    if not tune["flag_mask"][0]:
        family.state, family.reason = (
            "degraded",
            "cannot tell where one call ends and the next begins: each block counts as a call",
        )
    yield PendingCalls(kernel, family)
    mode = parts.settings.syscalls
    if mode == "sampled":
        Sampling(kernel, family, parts.window)
    elif mode == "full":
        _time_all(kernel, family, helper, tune)


#: Of ``cpu_wait``: shorter sums are not reported, and of others only so many an interval.
_CPU_FLOOR_NS, _CPU_PAIRS = 5_000_000, 64


def _named(batch: Batch, by: np.ndarray) -> Batch:
    """With who ran instead."""
    for name in ("pid", "proc_start_ns", "cgroup_id"):
        column = by[name]
        unknown = column >= (OUTSIDE if name == "pid" else np.iinfo(column.dtype).max)
        batch.rows[f"by_{name}"] = np.where(unknown, NULL_I64, column.astype(np.int64))
    batch.rows["by_comm"] = np.where(by["pid"] == 0, b"", by["comm"])
    return batch


def decode_cpu_events(records: np.ndarray) -> Batch:
    """syscalls_cpu_event records -> cpu_delay rows."""
    batch = decode(records[["t_ns", "proc"]], "cpu_delay")
    batch.rows["duration_ns"] = records["wait_ns"]
    return _named(batch, records["by"])


def decode_cpu_waits(keys: np.ndarray, values: np.ndarray, interval_ns: int, t_ns: int) -> Iterator[Batch]:
    """Aggregated elements -> cpu_wait rows: of each user in turn those that waited longest."""
    values = values[values["wait_ns"] >= _CPU_FLOOR_NS]
    values = values[np.argsort(values["wait_ns"], kind="stable")[::-1]]
    values = values[np.argsort(earlier(values["uid"]), kind="stable")[:_CPU_PAIRS]]
    if len(values):
        batch = decode(values[["count", "wait_ns", "max_ns", "proc"]], "cpu_wait")
        batch.rows["t_ns"], batch.rows["interval_ns"] = t_ns, interval_ns
        yield _named(batch, values["by"])


def measure_flag(tune: np.ndarray, write_nr: int) -> int:
    """Finds the kernel's TIF_NEED_FPU_LOAD bit: clear at the first block of a call, set at every later block of it.

    A preemption at the wrong moment hides the difference, so it is tried again. Bits below 8 are left out: they stand
    for pending work (rseq sets one of them), which some threads never have. 0 where no bit fits.
    """
    for _ in range(40):
        _block_both_ways(tune, write_nr)
        again, first = int(tune["flags_again"][0]), int(tune["flags_first"][0])
        candidates = again & ~first & 0xFFFFFF00 if again != 2**64 - 1 else 0
        if candidates:
            return candidates & -candidates
    return 0


def _block_both_ways(tune: np.ndarray, write_nr: int) -> None:
    """A thread sleeps twice (first blocks), then writes more to a pipe than it holds, which is emptied in steps (one
    call).
    """
    tune["flags_first"], tune["flags_again"], tune["flag_mask"] = 0, 2**64 - 1, 0
    tune["calibrate_nr"] = write_nr
    started, finished = threading.Event(), threading.Event()
    reader, writer = os.pipe()
    os.set_blocking(reader, False)

    def block() -> None:
        tune["calibrate_tid"] = threading.get_native_id()
        time.sleep(0.0002)
        time.sleep(0.0002)
        started.set()
        os.write(writer, b"\0" * 200_000)
        tune["calibrate_tid"] = 0
        finished.set()

    thread = threading.Thread(target=block, daemon=True)  # SIGINT may come meanwhile, and nobody then empties the pipe
    thread.start()
    started.wait()
    while not finished.wait(0.0002):
        try:
            os.read(reader, 16384)
        except BlockingIOError:
            continue
    thread.join()
    os.close(reader)
    os.close(writer)


class WatchedProcesses:
    """The kernel's ``syscalls_watched``, of 1,024 entries; where there is none, nothing is done."""

    def __init__(self, family: Family) -> None:
        self._fd = family.maps.get("syscalls_watched", -1)

    def add(self, pid: int, least_ns: int) -> bool:
        """Waits of ``least_ns`` or more are reported from now on. False where there is no room. Raises OSError where
        the kernel refuses the map.
        """
        try:
            if self._fd >= 0:
                bpf.update(self._fd, struct.pack("<I", pid), struct.pack("<Q", least_ns))
        except OSError as error:
            if error.errno in (errno.E2BIG, errno.ENOSPC):
                return False
            raise
        return True

    def drop(self, pid: int) -> None:
        """Raises OSError where the kernel refuses the map."""
        if self._fd >= 0:
            bpf.delete(self._fd, struct.pack("<I", pid))


PROBE = Probe(
    name="syscalls",
    settings=ProbeSettings,
    parts=("syscalls_call.h", "syscalls_lock.h", "syscalls_cpu.h", "syscalls_fd.h", "syscalls_timed.bpf.c"),
    after=("limiter", "dns", "unix"),
    programs=(
        Program("syscalls_on_switch", target="sched_switch", loses="time blocked in system calls"),
        Program(
            "syscalls_on_waking",
            target="sched_waking",
            loses="run-queue wait apart from blocked time, and who ended the wait",
        ),
        Program("syscalls_on_exit", target="sched_process_exit", loses="slow calls of threads that exit"),
        Program(
            "on_syscalls_so_far",
            target="sched_process_exit",
            on_demand=True,
            optional=True,
            loses="calls that go on, until they have ended",
        ),
        Program("syscalls_on_flock", target="flock_lock_inode", loses="who held the lock that a flock waited for"),
        Program("syscalls_on_posix", target="posix_lock_inode", loses="who held the lock that an fcntl waited for"),
        Program("syscalls_on_sys_enter", target="sys_enter", on_demand=True, loses="timing of calls that do not block"),
        Program("syscalls_on_sys_exit", target="sys_exit", on_demand=True, loses="timing of calls that do not block"),
    ),
    rings=(
        Ring("syscalls_events", "syscalls_event", decode_events),
        Ring("syscalls_cpu_events", "syscalls_cpu_event", decode_cpu_events),
    ),
    aggregates=(
        Aggregate(
            ("syscalls_a", "syscalls_b"),
            "syscalls_key",
            "syscalls_value",
            decode_latency,
            sums="syscalls_sums",
            places=128,
        ),
        Aggregate(("syscalls_cpu_a", "syscalls_cpu_b"), "syscalls_cpu_key", "syscalls_cpu_value", decode_cpu_waits),
    ),
    options={
        "SYSCALLS_CPUS": processors(),
        "SYSCALLS_SLOW_NS": 10_000_000,
        "SYSCALLS_WAIT_NS": 1_000_000,
        "SYSCALLS_THREADS": 32768,
    },
    maps=("syscalls_tune", "syscalls_class", "syscalls_watched", "syscalls_pending", "syscalls_so_far"),
    counts=("syscalls_shares",),
    setup=setup,
)
