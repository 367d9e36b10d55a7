"""The helper: the only process that keeps privileges. It opens, compares and attaches on request, and parses only
program headers.

Protocol on a SOCK_SEQPACKET pair: first u32 uid, u32 gid and the absolute path of the settings; then one fixed-size
request and one reply at a time:

* request: u64 id, u32 operation, u32 pid, u32 count, u32 flags, char name[256], u64 offsets[64]; descriptors by
  SCM_RIGHTS
* reply: u64 id of the request, i32 errno (0 ok), char digest[32]; descriptors by SCM_RIGHTS

It exits when the agent's end closes. The agent's side is agent/kernel/helper_client.py.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct

from agent.arch import host
from agent.kernel.attaching import attach_raw_tracepoints, attach_uprobe
from agent.kernel.opening import DIGEST_SIZE, digest, open_cgroup, open_proc, open_runtime_file, open_settings
from agent.posix import privilege

OPEN_PROC, ATTACH_UPROBE, ATTACH_RAW_TP, RESTRICT, OPEN_CGROUP, DIGEST, OPEN_RUNTIME, OPEN_SETTINGS = range(1, 9)
MAX_OFFSETS = 64
REQUEST = struct.Struct(f"<Q4I256s{MAX_OFFSETS}Q")
REPLY = struct.Struct(f"<Qi{DIGEST_SIZE}s")
BEGIN = struct.Struct("<II")
_MAX_PATH_BYTES = 4096
RETURN_PROBE = 1


def _handle(request: bytes, fds: list[int], settings: bytes) -> tuple[list[int], bytes]:
    """Handles a request; returns the descriptors and digest of the reply."""
    operation = REQUEST.unpack(request)[1]
    if operation == OPEN_SETTINGS:
        return [open_settings(settings)], b""
    return ([], digest(fds)) if operation == DIGEST and fds else (_open_or_attach(request, fds), b"")


def _open_or_attach(request: bytes, fds: list[int]) -> list[int]:
    _, operation, pid, count, flags, name, *offsets = REQUEST.unpack(request)
    name = name.rstrip(b"\0")
    if operation == OPEN_PROC:
        return [open_proc(pid, os.fsdecode(name))]
    if operation == ATTACH_UPROBE and len(fds) == 2 and count <= MAX_OFFSETS:
        return attach_uprobe(fds[0], fds[1], offsets[:count], bool(flags & RETURN_PROBE), pid)
    if operation == ATTACH_RAW_TP and 0 < len(fds) == name.count(b",") + 1:
        return attach_raw_tracepoints(fds, name.split(b","))
    if operation == OPEN_CGROUP and count == 1:
        return [open_cgroup(offsets[0])]
    if operation == OPEN_RUNTIME and count == 1:
        return [open_runtime_file(offsets[0], name)]
    if operation == RESTRICT:
        privilege.keep_capabilities(NEEDED_BY_LINKS)
        return []
    raise OSError(errno.EINVAL, "unknown request")


def receive(sock: socket.socket, size: int, flags: int = 0) -> tuple[bytes, list[int]]:
    """A message with all of its descriptors; none if there is not room for all."""
    data, ancillary, received, _ = sock.recvmsg(
        size, socket.CMSG_SPACE(4 * MAX_OFFSETS), socket.MSG_CMSG_CLOEXEC | flags
    )
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


#: For other processes' files: ptrace access and directory search; checkpoint for /proc/PID/map_files.
NEEDED_BY_LINKS = (privilege.CAP_SYS_PTRACE, privilege.CAP_DAC_READ_SEARCH, privilege.CAP_CHECKPOINT_RESTORE)
#: The uprobe PMU requires CAP_SYS_ADMIN (kernels since CVE-2025-38466). It is kept only if there are no uprobe_multi
#: links, and if it is there: a container on a newer kernel does without it (deploy/helm).
NEEDED_BY_PERF = (privilege.CAP_SYS_ADMIN, *NEEDED_BY_LINKS)

#: System calls that it may make from then on.
_CALLS = host.allowed(
    """read write close fstat lseek mmap mprotect munmap brk rt_sigaction rt_sigreturn ioctl pread64 mremap madvise
    sendmsg recvmsg exit readlink capset fstatfs futex getdents64 exit_group openat newfstatat perf_event_open
    open_by_handle_at getrandom memfd_create bpf openat2"""
)


def serve(sock: socket.socket, parent: int) -> None:
    """Runs the helper (``agent.posix.child.fork``): waits for its user, drops all other privileges, then answers until
    the other end closes.
    """
    message = sock.recv(BEGIN.size + _MAX_PATH_BYTES)
    if not message:
        return
    (uid, gid), settings = BEGIN.unpack_from(message), message[BEGIN.size :]
    may_perf = privilege.effective_capabilities() >> privilege.CAP_SYS_ADMIN & 1
    privilege.drop(uid, gid, NEEDED_BY_PERF if may_perf else NEEDED_BY_LINKS)
    privilege.die_with_parent(parent)
    privilege.allow_only(_CALLS)
    while True:
        request, fds = receive(sock, REQUEST.size)
        if not request:
            return
        out, content = list[int](), b""
        number, status = struct.unpack("<Q", request[:8].ljust(8, b"\0"))[0], errno.EINVAL
        try:
            if len(request) == REQUEST.size:
                (out, content), status = _handle(request, fds, settings), 0
        except OSError as error:
            status = error.errno or errno.EIO
        except (ValueError, OverflowError, struct.error):  # another process's file must not end this process
            status = errno.EINVAL
        try:
            send(sock, REPLY.pack(number, status, content), out)
        except OSError:
            return
        for fd in [*fds, *out]:
            os.close(fd)
