"""The helper: the one process that keeps privilege. It opens, compares and attaches on request, and parses nothing but program headers.

Protocol on a SOCK_SEQPACKET pair: u32 uid, u32 gid to begin with, then one fixed-size request and one reply at a time:
  request  u64 id, u32 operation, u32 pid, u32 count, u32 flags, char name[256], u64 offsets[64]; descriptors by SCM_RIGHTS
  reply    u64 id of the request, i32 errno (0 ok), char digest[32]; descriptors by SCM_RIGHTS
It exits when the agent's end closes. The agent's side is agent/kernel/helper_client.py.
"""

from __future__ import annotations

import array
import ctypes as ct
import errno
import os
import socket
import stat
import struct
from _blake2 import blake2b  # hashlib would bring OpenSSL with it, for 4 MB
from collections.abc import Callable

from agent import privilege
from agent.kernel import syscall
from agent.kernel.limits import DIGEST_BYTES, MAPS_BYTES

OPEN_PROC, ATTACH_UPROBE, ATTACH_RAW_TP, RESTRICT, OPEN_CGROUP, DIGEST = 1, 2, 3, 4, 5, 6
MAX_OFFSETS = 64
REQUEST = struct.Struct(f"<Q4I256s{MAX_OFFSETS}Q")
DIGEST_SIZE = 32
REPLY = struct.Struct(f"<Qi{DIGEST_SIZE}s")
BEGIN = struct.Struct("<II")
RETURN_PROBE = 1
_RAW_TRACEPOINTS = (b"sys_enter", b"sys_exit", b"tcp_probe", b"sock_send_length")
_PERF_EVENT_OPEN, _OPEN_BY_HANDLE_AT, _OPENAT2 = (298, 304, 437) if os.uname().machine == "x86_64" else (241, 265, 437)
_IOC_ENABLE, _IOC_SET_BPF = 0x2400, 0x40042408
_RESOLVE_IN_ROOT, _RESOLVE_NO_XDEV = 0x10, 0x01
_FILEID_KERNFS, _O_PATH = 0xFE, 0o10000000
_LINKER_CACHES = (b"glibc-ld.so.cache", b"ld.so-1.7.0")
_BPF_RAW_TRACEPOINT_OPEN, _BPF_LINK_CREATE, _TRACE_UPROBE_MULTI = 17, 28, 48
_PART = 1 << 16
_PMU = "/sys/bus/event_source/devices/uprobe"

_libc = ct.CDLL(None, use_errno=True)
_libc.syscall.restype = ct.c_long


def _call(number: int, *args: object) -> int:
    result = _libc.syscall(ct.c_long(number), *args)
    if result < 0:
        raise OSError(ct.get_errno(), os.strerror(ct.get_errno()))
    return int(result)


def open_proc(pid: int, what: str) -> int:
    """Opens a file of a process read-only: its ``maps``, or, where they are executables or shared libraries, its ``exe``, ``root:PATH`` or ``map:RANGE``.

    RANGE names a mapping as /proc/PID/map_files does; it finds files that have been deleted. ``linker-cache``: its root's /etc/ld.so.cache.
    ``below:FOLDER``, a zero byte, and ``root:PATH`` or ``linker-cache``: as if this folder of its root's were the root; no mount in it is looked into.
    """
    folder = ""
    if what.startswith("below:") and what.rpartition("\0")[2].startswith(("root:", "linker-cache")):
        folder, _, what = what.removeprefix("below:").partition("\0")
    if what == "maps":
        return _copy_of(f"/proc/{pid}/maps")
    if what == "exe":
        named = os.open(f"/proc/{pid}/exe", _O_PATH | os.O_CLOEXEC)
    elif what.startswith("map:") and all(c in "0123456789abcdef-" for c in what[4:]):
        named = os.open(f"/proc/{pid}/map_files/{what[4:]}", _O_PATH | os.O_CLOEXEC)
    elif what.startswith("root:"):
        named = _name_in_root(pid, what.removeprefix("root:"), folder)
    elif what == "linker-cache":
        named = _name_in_root(pid, "/etc/ld.so.cache", folder)
    else:
        raise OSError(errno.EINVAL, what)
    try:
        return _open_regular(named, _is_cache if what == "linker-cache" else _is_program)
    finally:
        os.close(named)


def _open_regular(named: int, is_one: Callable[[bytes], bool]) -> int:
    """What an O_PATH descriptor names, read-only. Nothing but a regular file is opened: to open a device or a FIFO is to do something with it."""
    fd = -1
    try:
        if stat.S_ISREG(os.fstat(named).st_mode):
            fd = os.open(f"/proc/self/fd/{named}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if fd < 0 or not is_one(os.pread(fd, 18, 0)):
            raise OSError(errno.ENOEXEC, "not an executable, a shared library or a linker's cache")
    except OSError:
        if fd >= 0:
            os.close(fd)
        raise
    return fd


def _copy_of(path: str) -> int:
    """A text of the kernel's, copied: to read it may wait for the process that it is about, which must hold up nobody but this helper."""
    copy = os.memfd_create("text", os.MFD_CLOEXEC)
    source = -1
    try:
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        left = MAPS_BYTES
        while left > 0 and (part := os.read(source, min(left, 1 << 16))):
            os.write(copy, part)
            left -= len(part)
        os.lseek(copy, 0, os.SEEK_SET)
    except OSError:
        os.close(copy)
        raise
    finally:
        if source >= 0:
            os.close(source)
    return copy


def _is_program(head: bytes) -> bool:
    """Whether an ELF header is an executable's or a shared library's (e_type 2, 3): a core dump, of whatever process, is none of ours."""
    order = {1: "little", 2: "big"}.get(head[5]) if len(head) == 18 else None
    return head[:4] == b"\x7fELF" and order is not None and int.from_bytes(head[16:18], order) in (2, 3)  # type: ignore[arg-type]


def _is_cache(head: bytes) -> bool:
    return head.startswith(_LINKER_CACHES)


def open_cgroup(number: int) -> int:
    """The directory of a cgroup, by the id that kernel programs see (kernel 5.5): a descriptor that only names it. Raises OSError, ESTALE where it is gone."""
    with open("/proc/self/mountinfo", "rb") as mounts:  # users name mounts of theirs as they like
        point = next((line.split()[4] for line in mounts if b" - cgroup2 " in line), None)
    if point is None:
        raise OSError(errno.ENOENT, "no cgroup2 file system is mounted")
    mount = os.open(point, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        handle = ct.create_string_buffer(struct.pack("<IiQ", 8, _FILEID_KERNFS, number), 16)
        return _call(_OPEN_BY_HANDLE_AT, ct.c_int(mount), handle, ct.c_int(_O_PATH | os.O_CLOEXEC))
    finally:
        os.close(mount)


def _name_in_root(pid: int, path: str, folder: str = "") -> int:
    """A descriptor that only names a path as the process sees it; symbolic links resolve inside its root, or inside a folder of it
    (openat2, kernel 5.6)."""
    root = os.open(f"/proc/{pid}/root", _O_PATH | os.O_CLOEXEC)
    try:
        if folder:
            below = _open_at(root, folder, _O_PATH | os.O_DIRECTORY, _RESOLVE_IN_ROOT)
            os.close(root)
            root = below
        return _open_at(root, path, _O_PATH, _RESOLVE_IN_ROOT | (_RESOLVE_NO_XDEV if folder else 0))
    finally:
        os.close(root)


def _open_at(root: int, path: str, flags: int, resolve: int) -> int:
    how = struct.pack("<QQQ", flags | os.O_CLOEXEC, 0, resolve)
    return _call(_OPENAT2, ct.c_int(root), ct.c_char_p(os.fsencode(path)), ct.c_char_p(how), ct.c_size_t(len(how)))


def digest(fds: list[int]) -> bytes:
    """Of a file's whole content and, of the files beside it, their sizes, first and last parts (where a build's id is). Raises OSError, EFBIG."""
    content = blake2b(digest_size=DIGEST_SIZE)
    for i, fd in enumerate(fds):
        size = os.fstat(fd).st_size
        if size > DIGEST_BYTES and not i:
            raise OSError(errno.EFBIG, "too large to be told apart by its content")
        content.update(struct.pack("<Q", size))
        for at in (0, max(size - _PART, 0)) if i else range(0, size, _PART):
            content.update(os.pread(fd, _PART, at))
    return content.digest()


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
    return syscall.require(_BPF_LINK_CREATE, head + struct.pack("<II", len(offsets), int(ret)))


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
    return syscall.require(_BPF_RAW_TRACEPOINT_OPEN, struct.pack("<QI", ct.addressof(text), program))


def _handle(request: bytes, fds: list[int]) -> tuple[list[int], bytes]:
    """Descriptors and digest to reply with."""
    operation = REQUEST.unpack(request)[1]
    return ([], digest(fds)) if operation == DIGEST and fds else (_open_or_attach(request, fds), b"")


def _open_or_attach(request: bytes, fds: list[int]) -> list[int]:
    _, operation, pid, count, flags, name, *offsets = REQUEST.unpack(request)
    name = name.rstrip(b"\0")
    if operation == OPEN_PROC:
        return [open_proc(pid, os.fsdecode(name))]
    if operation == ATTACH_UPROBE and len(fds) == 2 and count <= MAX_OFFSETS:
        return attach_uprobe(fds[0], fds[1], offsets[:count], bool(flags & RETURN_PROBE))
    if operation == ATTACH_RAW_TP and len(fds) == 1:
        return [attach_raw_tracepoint(fds[0], name)]
    if operation == OPEN_CGROUP and count == 1:
        return [open_cgroup(offsets[0])]
    if operation == RESTRICT:
        privilege.keep_capabilities(NEEDED_BY_LINKS)
        return []
    raise OSError(errno.EINVAL, "unknown request")


def receive(sock: socket.socket, size: int, flags: int = 0) -> tuple[bytes, list[int]]:
    """A message and all of its descriptors; none where there is no room for each of them."""
    data, ancillary, received, _ = sock.recvmsg(size, socket.CMSG_SPACE(4 * MAX_OFFSETS), socket.MSG_CMSG_CLOEXEC | flags)
    fds = array.array("i")
    for level, kind, raw in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
    if received & socket.MSG_CTRUNC:
        while fds:
            os.close(fds.pop())
    return data, list(fds)


def send(sock: socket.socket, data: bytes, fds: list[int]) -> None:
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([data], ancillary)


#: To look into other processes' files: ptrace access and search, and checkpoint for /proc/PID/map_files.
NEEDED_BY_LINKS = (privilege.CAP_SYS_PTRACE, privilege.CAP_DAC_READ_SEARCH, privilege.CAP_CHECKPOINT_RESTORE)
#: The uprobe PMU insists on CAP_SYS_ADMIN (kernels since CVE-2025-38466); kept only where there are no uprobe_multi links.
NEEDED_BY_PERF = (privilege.CAP_SYS_ADMIN, *NEEDED_BY_LINKS)

#: read write close fstat lseek mmap mprotect munmap brk rt_sigreturn ioctl pread64 sendmsg recvmsg exit futex openat newfstatat capset
#: exit_group perf_event_open open_by_handle_at bpf openat2 getrandom memfd_create readlink rt_sigaction madvise mremap
_X86_CALLS = (0, 1, 3, 5, 8, 9, 10, 11, 12, 13, 15, 16, 17, 25, 28, 46, 47, 60, 89, 126, 202, 231, 257, 262, 298, 304, 318, 319, 321, 437)


def serve(sock: socket.socket, parent: int) -> None:
    """The helper's whole life (``agent.child.fork``): waits for its user, drops to what it needs, then answers until the other end closes."""
    message = sock.recv(BEGIN.size)
    if not message:
        return
    uid, gid = BEGIN.unpack(message)
    privilege.drop(uid, gid, NEEDED_BY_PERF)
    privilege.die_with_parent(parent)
    if os.uname().machine == "x86_64":
        privilege.allow_only(_X86_CALLS)
    while True:
        request, fds = receive(sock, REQUEST.size)
        if not request:
            return
        out, content = list[int](), b""
        number, status = struct.unpack("<Q", request[:8].ljust(8, b"\0"))[0], errno.EINVAL
        try:
            if len(request) == REQUEST.size:
                (out, content), status = _handle(request, fds), 0
        except OSError as error:
            status = error.errno or errno.EIO
        except (ValueError, OverflowError, struct.error):  # what somebody else's file says must not end this process
            status = errno.EINVAL
        try:
            send(sock, REPLY.pack(number, status, content), out)
        except OSError:
            return
        for fd in [*fds, *out]:
            os.close(fd)
