"""Free space of the file systems in which a process has files open for writing. Runs in the helper, which alone may
read this. Local file systems only, since a remote one may not answer.
"""

from __future__ import annotations

import os

#: Descriptors that are checked, and file systems that are reported.
MOST_FILES, MOST = 256, 8
LOCAL = frozenset(
    ["ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "overlay", "zfs", "bcachefs", "jfs", "vfat", "exfat"]
)
_WRITES = (os.O_WRONLY, os.O_RDWR)


def spaces(pid: int) -> bytes:
    """One line per file system: total bytes, bytes left to users, files in all and left (0 0 if there is no such
    number), descriptor, mount point (as in mountinfo). Raises OSError.
    """
    mounts = _mounts(_read(f"/proc/{pid}/mountinfo", 1 << 20))
    lines: dict[str, bytes] = {}
    with os.scandir(f"/proc/{pid}/fd") as found:
        for _, entry in zip(range(MOST_FILES), found, strict=False):
            mount = _written(pid, entry.name)
            if mount in mounts and mount not in lines and len(lines) < MOST:
                line = _line(pid, entry.name, mounts[mount])
                if line:
                    lines[mount] = line
    return b"".join(lines.values())


def _written(pid: int, name: str) -> str:
    """The mount id of the file, if the descriptor may write; else empty."""
    try:
        pairs = dict(
            line.split(b":", 1) for line in _read(f"/proc/{pid}/fdinfo/{name}", 4096).splitlines() if b":" in line
        )
    except OSError:
        return ""
    if b"mnt_id" not in pairs or int(pairs.get(b"flags", b"0"), 8) & os.O_ACCMODE not in _WRITES:
        return ""
    return pairs[b"mnt_id"].strip().decode()


def _line(pid: int, name: str, point: bytes) -> bytes:
    try:
        fd = os.open(f"/proc/{pid}/fd/{name}", os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        v = os.fstatvfs(fd)
    except OSError:
        return b""
    finally:
        os.close(fd)
    return b"%d %d %d %d %s %s\n" % (
        v.f_blocks * v.f_frsize,
        v.f_bavail * v.f_frsize,
        v.f_files,
        v.f_ffree,
        name.encode(),
        point,
    )


def _mounts(text: bytes) -> dict[str, bytes]:
    """The mount points of writable local file systems, by mount id."""
    out = {}
    for line in text.splitlines():
        before, _, after = line.partition(b" - ")
        words, kind = before.split(), after.split()
        if len(words) > 5 and kind and kind[0].decode("latin-1") in LOCAL and b"rw" in words[5].split(b","):
            out[words[0].decode()] = words[4]
    return out


def _read(path: str, most: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while most > 0 and (part := os.read(fd, min(most, 1 << 16))):
            parts.append(part)
            most -= len(part)
        return b"".join(parts)
    finally:
        os.close(fd)
