"""The helper: the one process that keeps privilege. It opens and attaches on request, and parses nothing but program headers.

Protocol on a SOCK_SEQPACKET pair, one fixed-size request and one reply at a time:
  request  u32 operation, u32 pid, u32 count, u32 flags, char name[256], u64 offsets[64]; descriptors by SCM_RIGHTS
  reply    i32 errno (0 ok); descriptors by SCM_RIGHTS
It exits when the agent's end closes. ``Helper`` is the agent's side.
"""

from __future__ import annotations

import array
import contextlib
import ctypes as ct
import errno
import os
import signal
import socket
import stat
import struct

from agent import privilege

OPEN_PROC, ATTACH_UPROBE, ATTACH_RAW_TP, RESTRICT = 1, 2, 3, 4
MAX_OFFSETS = 64
_REQUEST = struct.Struct(f"<4I256s{MAX_OFFSETS}Q")
_REPLY = struct.Struct("<i")
RETURN_PROBE = 1
_RAW_TRACEPOINTS = (b"sys_enter", b"sys_exit", b"tcp_probe", b"sock_send_length")
_PERF_EVENT_OPEN, _BPF, _OPENAT2 = (298, 321, 437) if os.uname().machine == "x86_64" else (241, 280, 437)
_IOC_ENABLE, _IOC_SET_BPF = 0x2400, 0x40042408
_RESOLVE_IN_ROOT = 0x10
_BPF_RAW_TRACEPOINT_OPEN, _BPF_LINK_CREATE, _TRACE_UPROBE_MULTI = 17, 28, 48
_PMU = "/sys/bus/event_source/devices/uprobe"

_libc = ct.CDLL(None, use_errno=True)
_libc.syscall.restype = ct.c_long


def _call(number: int, *args: object) -> int:
    result = _libc.syscall(ct.c_long(number), *args)
    if result < 0:
        raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))
    return int(result)


def open_proc(pid: int, what: str) -> int:
    """Opens a file of a process read-only: its ``maps``, or, where they are ELF files, its ``exe``, ``root:PATH`` or ``map:RANGE``.

    RANGE names a mapping as /proc/PID/map_files does; it finds files that have been deleted.
    """
    if what == "maps":
        return os.open(f"/proc/{pid}/maps", os.O_RDONLY | os.O_CLOEXEC)
    if what == "exe":
        fd = os.open(f"/proc/{pid}/exe", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    elif what.startswith("map:") and all(c in "0123456789abcdef-" for c in what[4:]):
        fd = os.open(f"/proc/{pid}/map_files/{what[4:]}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    elif what.startswith("root:"):
        fd = _open_in_root(pid, what.removeprefix("root:"))
    else:
        raise OSError(errno.EINVAL, what)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode) or os.pread(fd, 4, 0) != b"\x7fELF":
            raise OSError(errno.ENOEXEC, "not an ELF file")
    except OSError:
        os.close(fd)
        raise
    return fd


def _open_in_root(pid: int, path: str) -> int:
    """A path as the process sees it; symbolic links resolve inside its root (openat2, kernel 5.6)."""
    root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_CLOEXEC)
    try:
        how = struct.pack("<QQQ", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, 0, _RESOLVE_IN_ROOT)
        return _call(_OPENAT2, ct.c_int(root), ct.c_char_p(os.fsencode(path)), ct.c_char_p(how), ct.c_size_t(len(how)))
    finally:
        os.close(root)


def executable_ranges(fd: int) -> list[tuple[int, int]]:
    """File ranges of a 64-bit ELF file's executable segments (at most 64 program headers are looked at). Raises OSError."""
    head = os.pread(fd, 64, 0)
    if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
        raise OSError(errno.ENOEXEC, "not a 64-bit little-endian ELF file")
    at, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
    if size != 56 or at >= 1 << 63:
        raise OSError(errno.ENOEXEC, "odd program headers")
    table = os.pread(fd, 56 * min(count, 64), at)
    headers = [struct.unpack_from("<IIQQQQ", table, i) for i in range(0, len(table) - 55, 56)]
    return [(offset, offset + length) for kind, flags, offset, _, _, length in headers if kind == 1 and flags & 1]


def attach_uprobe(program: int, file: int, offsets: list[int], ret: bool) -> list[int]:
    """Attaches for all processes; closing what is returned detaches. Raises OSError, EINVAL for an offset outside code.

    One uprobe_multi link where the program was loaded for it (kernel 6.6), else a perf event an offset.
    """
    ranges = executable_ranges(file)
    if not all(any(low <= o < high for low, high in ranges) for o in offsets):
        raise OSError(errno.EINVAL, "an offset lies outside the executable segments")
    path = ct.create_string_buffer(f"/proc/self/fd/{file}".encode())
    try:
        return [_multi_link(program, path, offsets, ret)]
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return _perf_events(program, path, offsets, ret)


def _multi_link(program: int, path: ct.Array[ct.c_char], offsets: list[int], ret: bool) -> int:
    places = struct.pack(f"<{len(offsets)}Q", *offsets)
    buffer = ct.create_string_buffer(places, len(places))
    head = struct.pack("<IIIIQQQQ", program, 0, _TRACE_UPROBE_MULTI, 0, ct.addressof(path), ct.addressof(buffer), 0, 0)
    attr = (head + struct.pack("<II", len(offsets), int(ret))).ljust(128, b"\0")
    return _call(_BPF, ct.c_int(_BPF_LINK_CREATE), ct.c_char_p(attr), ct.c_uint(64))


def _perf_events(program: int, path: ct.Array[ct.c_char], offsets: list[int], ret: bool) -> list[int]:
    with open(f"{_PMU}/type") as pmu:
        kind = int(pmu.read())
    with open(f"{_PMU}/format/retprobe") as form:
        config = (1 << int(form.read().split(":")[1])) if ret else 0
    links: list[int] = []
    try:
        for offset in offsets:
            attr = struct.pack("<IIQQQQQIIQQ", kind, 112, config, 1, 0, 0, 0, 1, 0, ct.addressof(path), offset).ljust(112, b"\0")
            pid, cpu, group, cloexec = ct.c_int(-1), ct.c_int(0), ct.c_int(-1), ct.c_ulong(8)
            fd = _call(_PERF_EVENT_OPEN, ct.c_char_p(attr), pid, cpu, group, cloexec)
            links.append(fd)
            for request, value in ((_IOC_SET_BPF, program), (_IOC_ENABLE, 0)):
                if _libc.ioctl(fd, ct.c_ulong(request), ct.c_ulong(value)) < 0:
                    raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))
    except OSError:
        for fd in links:
            os.close(fd)
        raise
    return links


def attach_raw_tracepoint(program: int, name: bytes) -> int:
    """Attaches to one of the tracepoints that are wanted only at times; closing detaches. Raises OSError."""
    if name not in _RAW_TRACEPOINTS:
        raise OSError(errno.EPERM, "not a tracepoint that may be asked for")
    text = ct.create_string_buffer(name)
    attr = struct.pack("<QI", ct.addressof(text), program).ljust(128, b"\0")
    return _call(_BPF, ct.c_int(_BPF_RAW_TRACEPOINT_OPEN), ct.c_char_p(attr), ct.c_uint(len(attr)))


def _handle(request: bytes, fds: list[int]) -> list[int]:
    operation, pid, count, flags, name, *offsets = _REQUEST.unpack(request)
    name = name.rstrip(b"\0")
    if operation == OPEN_PROC:
        return [open_proc(pid, os.fsdecode(name))]
    if operation == ATTACH_UPROBE and len(fds) == 2 and count <= MAX_OFFSETS:
        return attach_uprobe(fds[0], fds[1], offsets[:count], bool(flags & RETURN_PROBE))
    if operation == ATTACH_RAW_TP and len(fds) == 1:
        return [attach_raw_tracepoint(fds[0], name)]
    if operation == RESTRICT:
        privilege.keep_capabilities(NEEDED_BY_LINKS)
        return []
    raise OSError(errno.EINVAL, "unknown request")


def _receive(sock: socket.socket, size: int) -> tuple[bytes, list[int]]:
    data, ancillary, _, _ = sock.recvmsg(size, socket.CMSG_SPACE(4 * MAX_OFFSETS), socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, raw in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
    return data, list(fds)


def _send(sock: socket.socket, data: bytes, fds: list[int]) -> None:
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([data], ancillary)


#: To look into other processes' files: ptrace access and search, and checkpoint for /proc/PID/map_files.
NEEDED_BY_LINKS = (privilege.CAP_SYS_PTRACE, privilege.CAP_DAC_READ_SEARCH, privilege.CAP_CHECKPOINT_RESTORE)
#: The uprobe PMU insists on CAP_SYS_ADMIN (kernels since CVE-2025-38466); kept only where there are no uprobe_multi links.
NEEDED_BY_PERF = (privilege.CAP_SYS_ADMIN, *NEEDED_BY_LINKS)

#: read close fstat lseek mmap mprotect munmap brk rt_sigreturn ioctl pread64 sendmsg recvmsg exit futex openat newfstatat capset
#: exit_group perf_event_open bpf openat2 getrandom readlink rt_sigaction madvise mremap
_X86_CALLS = (0, 3, 5, 8, 9, 10, 11, 12, 13, 15, 16, 17, 25, 28, 46, 47, 60, 89, 126, 202, 231, 257, 262, 298, 318, 321, 437)


def serve(sock: socket.socket, uid: int, gid: int) -> None:
    """The helper's whole life: drops to what it needs, then answers until the other end closes. Never returns."""
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    privilege.set_name("tickscope-help")
    privilege.drop(uid, gid, NEEDED_BY_PERF)
    privilege.die_with_parent(parent)
    if os.uname().machine == "x86_64":
        privilege.allow_only(_X86_CALLS)
    while True:
        request, fds = _receive(sock, _REQUEST.size)
        if not request:
            os._exit(0)
        out: list[int] = []
        status = 0
        try:
            out = _handle(request, fds) if len(request) == _REQUEST.size else []
        except OSError as error:
            status = error.errno or errno.EIO
        except (ValueError, OverflowError, struct.error):  # what somebody else's file says must not end this process
            status = errno.EINVAL
        try:
            _send(sock, _REPLY.pack(status), out)
        except OSError:
            os._exit(0)
        for fd in [*fds, *out]:
            os.close(fd)


class Helper:
    """The agent's side. Every method raises OSError; ``alive`` turns False once the helper is gone (EPIPE from then on)."""

    def __init__(self, sock: socket.socket, pid: int) -> None:
        sock.settimeout(2)
        self._sock, self.pid, self.alive = sock, pid, True

    def _ask(self, operation: int, pid: int = 0, name: bytes = b"", offsets: list[int] | None = None, flags: int = 0,
             fds: list[int] | None = None) -> list[int]:  # fmt: skip
        offsets = offsets or []
        padded = [*offsets, *[0] * (MAX_OFFSETS - len(offsets))]
        if len(name) > 255:
            raise OSError(errno.ENAMETOOLONG, os.fsdecode(name))
        if not self.alive:
            raise OSError(errno.EPIPE, "the helper is gone")
        try:
            _send(self._sock, _REQUEST.pack(operation, pid, len(offsets), flags, name, *padded), fds or [])
            data, received = _receive(self._sock, _REPLY.size)
        except OSError:
            self.alive = False
            raise
        if not data:
            self.alive = False
            raise OSError(errno.EPIPE, "the helper is gone")
        (status,) = _REPLY.unpack(data)
        if status:
            raise OSError(status, os.strerror(status))
        return received

    def open_proc(self, pid: int, what: str) -> int:
        """A read-only descriptor of ``maps``, ``exe`` or ``root:PATH`` of a process (the latter two ELF files only)."""
        return self._ask(OPEN_PROC, pid, os.fsencode(what))[0]

    def attach_uprobe(self, program_fd: int, file_fd: int, offsets: list[int], ret: bool = False) -> list[int]:
        """A uprobe (or uretprobe) at each file offset, for all processes; closing a returned descriptor detaches it."""
        links: list[int] = []
        for at in range(0, len(offsets), MAX_OFFSETS):
            part = offsets[at : at + MAX_OFFSETS]
            links += self._ask(ATTACH_UPROBE, offsets=part, flags=RETURN_PROBE * ret, fds=[program_fd, file_fd])
        return links

    def attach_raw_tracepoint(self, program_fd: int, name: str) -> int:
        """Attaches a program to a tracepoint that may be asked for; closing the returned descriptor detaches it."""
        return self._ask(ATTACH_RAW_TP, name=name.encode(), fds=[program_fd])[0]

    def restrict(self) -> None:
        """Has it give up CAP_SYS_ADMIN, which it does not need where uprobes are attached by links."""
        self._ask(RESTRICT)

    def close(self) -> None:
        """Ends the helper and waits for it."""
        self.alive = False
        self._sock.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def start(uid: int, gid: int) -> Helper:
    """Forks the helper. Call early, from a small single-threaded process: its memory is what the parent has mapped then."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            privilege.keep_only(theirs.fileno())
            serve(theirs, uid, gid)
        finally:
            os._exit(1)
    theirs.close()
    return Helper(ours, pid)
