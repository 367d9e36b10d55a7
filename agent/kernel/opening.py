"""Opens files on the helper's side: executables, libraries and maps of other processes, cgroups, files of container
runtimes, the settings; and computes digests. Parses only the first bytes of a file.
"""

from __future__ import annotations

import ctypes as ct
import errno
import os
import stat
import struct
from _blake2 import blake2b  # hashlib would load OpenSSL, 4 MB
from collections.abc import Callable

from agent.arch import host
from agent.common.runtimes import RUNTIME_FILES
from agent.kernel.asleep import asleep
from agent.kernel.spaces import spaces
from agent.kernel.syscall import call

DIGEST_SIZE = 32
_OPEN_BY_HANDLE_AT, _OPENAT2 = host.numbers("open_by_handle_at openat2")
_RESOLVE_IN_ROOT, _RESOLVE_NO_XDEV = 0x10, 0x01
_RESOLVE_BENEATH, _RESOLVE_NO_SYMLINKS = 0x08, 0x04
_FILEID_KERNFS, _O_PATH, _AT_FDCWD = 0xFE, 0o10000000, -100
_LINKER_CACHES = (b"glibc-ld.so.cache", b"ld.so-1.7.0")
_PART = 1 << 16
#: Bytes of /proc/PID/maps, about 40,000 mappings; bytes of a library that is compared by content. Declared here, since
#: the helper is forked before agent/kernel/limits.py is imported.
MAPS_BYTES, DIGEST_BYTES = 4 << 20, 16 << 20


def open_proc(pid: int, what: str) -> int:
    """Opens a file of a process read-only. what: its ``maps``; a text of the ``spaces`` that it writes to
    (agent/kernel/spaces.py); a text of its threads that are ``asleep`` (agent/kernel/asleep.py; ``asleep:TID``: one
    thread); and, for executables and shared libraries only, its ``exe``, ``root:PATH`` or ``map:RANGE``.

    RANGE is a mapping's name in /proc/PID/map_files, which also finds deleted files. ``linker-cache``: its root's
    /etc/ld.so.cache. ``below:FOLDER``, a zero byte, and ``root:PATH`` or ``linker-cache``: as if this folder of its
    root were the root, without crossing mounts.
    """
    folder = ""
    if what.startswith("below:") and what.rpartition("\0")[2].startswith(("root:", "linker-cache")):
        folder, _, what = what.removeprefix("below:").partition("\0")
    if what == "maps":
        return _copy_of(f"/proc/{pid}/maps")
    if what == "spaces":
        return _text(spaces(pid))
    if what == "asleep" or (what.startswith("asleep:") and what[7:].isascii() and what[7:].isdigit()):
        return _text(asleep(pid, what[7:]))
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
    """Opens the file of an O_PATH descriptor read-only. Only regular files are opened: opening a device or a FIFO has
    side effects.
    """
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


def _text(content: bytes) -> int:
    copy = os.memfd_create("text", os.MFD_CLOEXEC)
    os.write(copy, content)
    os.lseek(copy, 0, os.SEEK_SET)
    return copy


def _copy_of(path: str) -> int:
    """A copy of a kernel text file. Reading it may wait for the process it concerns, which must delay only
    this helper.
    """
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
    """Whether an ELF header is that of an executable or a shared library (e_type 2, 3), not of a core dump."""
    order = {1: "little", 2: "big"}.get(head[5]) if len(head) == 18 else None
    return head[:4] == b"\x7fELF" and order is not None and int.from_bytes(head[16:18], order) in (2, 3)  # type: ignore[arg-type]


def _is_cache(head: bytes) -> bool:
    return head.startswith(_LINKER_CACHES)


def open_cgroup(number: int) -> int:
    """An O_PATH descriptor of a cgroup's directory, by the id that kernel programs use (kernel 5.5). Raises OSError,
    ESTALE if it is gone.
    """
    with open("/proc/self/mountinfo", "rb") as mounts:  # users choose the names of their mounts
        point = next((line.split()[4] for line in mounts if b" - cgroup2 " in line), None)
    if point is None:
        raise OSError(errno.ENOENT, "no cgroup2 file system is mounted")
    mount = os.open(point, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        handle = ct.create_string_buffer(struct.pack("<IiQ", 8, _FILEID_KERNFS, number), 16)
        return call(_OPEN_BY_HANDLE_AT, ct.c_int(mount), handle, ct.c_int(_O_PATH | os.O_CLOEXEC))
    finally:
        os.close(mount)


def open_runtime_file(number: int, container_id: bytes) -> int:
    """Opens ``RUNTIME_FILES[number]`` of a container read-only: a regular file of root, reached from its folder without
    symbolic links. Raises OSError.
    """
    if number >= len(RUNTIME_FILES) or len(container_id) != 64 or container_id.strip(b"0123456789abcdef"):
        raise OSError(errno.EINVAL, "no such file of a runtime")
    found = RUNTIME_FILES[number]
    folder = os.open(found.folder, _O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        place = found.place.replace("{}", container_id.decode())
        named = _open_at(folder, place, _O_PATH, _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS)
    finally:
        os.close(folder)
    return _open_of_root(named)


def open_settings(path: bytes) -> int:
    """Opens the settings read-only: a regular file of root, reached without symbolic links. Raises OSError."""
    return _open_of_root(_open_at(_AT_FDCWD, os.fsdecode(path), _O_PATH, _RESOLVE_NO_SYMLINKS))


def _open_of_root(named: int) -> int:
    """Opens the file of an O_PATH descriptor, which is closed, if it is a regular file of root."""
    try:
        of = os.fstat(named)
        if not stat.S_ISREG(of.st_mode) or of.st_uid != 0:
            raise OSError(errno.EPERM, "no regular file of root")
        return os.open(f"/proc/self/fd/{named}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(named)


def _name_in_root(pid: int, path: str, folder: str = "") -> int:
    """An O_PATH descriptor of a path as the process sees it. Symbolic links resolve inside its root, or inside a folder
    of it (openat2, kernel 5.6).
    """
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
    return call(_OPENAT2, ct.c_int(root), ct.c_char_p(os.fsencode(path)), ct.c_char_p(how), ct.c_size_t(len(how)))


def digest(fds: list[int]) -> bytes:
    """A digest of the first file's whole content and of the sizes, first and last parts of the others (where the build
    id is). Raises OSError, EFBIG.
    """
    content = blake2b(digest_size=DIGEST_SIZE)
    for i, fd in enumerate(fds):
        size = os.fstat(fd).st_size
        if size > DIGEST_BYTES and not i:
            raise OSError(errno.EFBIG, "too large to be compared by its content")
        content.update(struct.pack("<Q", size))
        for at in (0, max(size - _PART, 0)) if i else range(0, size, _PART):
            content.update(os.pread(fd, _PART, at))
    return content.digest()
