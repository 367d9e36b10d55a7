"""The cgroups of a process, from /proc/PID/cgroup, with paths from the root of the hierarchy.

The kernel shows paths from the root of the reader's cgroup namespace (cgroup_namespaces(7)). With version 2, container
runtimes give each container a namespace of its own, in which the paths of others begin with ``/..``. The agent in a
container knows the namespace's root from the host's tree, which is mounted there (deploy/helm).
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_MOST_BYTES = 8192
_TWO = b"0::"


def read(pid: int) -> bytes:
    """The text of the file; of version 2 with the path from the root of the hierarchy. Raises OSError."""
    text = _text(pid)
    return text if _TWO not in text else absolute(text, namespace_root())


def absolute(text: bytes, root: bytes) -> bytes:
    """root: the cgroup at the root of the namespace in which the text was read. Pure."""
    if root == b"/":
        return text
    lines = (
        _TWO + os.path.normpath(root + line.removeprefix(_TWO)) if line.startswith(_TWO) else line
        for line in text.split(b"\n")
    )
    return b"\n".join(lines)


@cache
def namespace_root() -> bytes:
    """The cgroup of version 2 at the root of this process's namespace: ``/`` in the host's, and where it is unknown."""
    try:
        if not _path("1").startswith(b"/.."):
            return b"/"
        mounts = Path("/proc/self/mounts").read_bytes().split(b"\n")
        mount = next((line.split(b" ")[1] for line in mounts if b" cgroup2 " in line), b"")
        own = _path("self").rstrip(b"/")
    except OSError:
        return b"/"
    pid = str(os.getpid()).encode()
    for folder, _, _ in os.walk(mount) if mount else ():
        try:
            inside = pid in Path(os.fsdecode(folder), "cgroup.procs").read_bytes().split()
        except OSError:  # it was removed meanwhile, or is threaded
            continue
        if inside:
            return folder.removeprefix(mount).removesuffix(own) or b"/"
    return b"/"


def _path(pid: str) -> bytes:
    lines = _text(pid).split(b"\n")
    return next((line.removeprefix(_TWO) for line in lines if line.startswith(_TWO)), b"/")


def _text(pid: int | str) -> bytes:
    fd = os.open(f"/proc/{pid}/cgroup", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _MOST_BYTES)
    finally:
        os.close(fd)
