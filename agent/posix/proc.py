"""Makes /proc show the processes of all users, also if the host mounts it with ``hidepid=``.

A process without CAP_SYS_PTRACE then sees only its own user's processes. The agent drops that capability, and a group
(``gid=``) helps with ``hidepid=invisible`` only. So while it is root it mounts a /proc of its own: since Linux 5.8 each
mount has its own options (fa10fed30f25).
"""

from __future__ import annotations

import ctypes as ct
import os

_CLONE_NEWNS = 0x20000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_SLAVE = 2, 4, 8, 1 << 14, 1 << 19
REMEDY = "mount /proc without this option for tickscope, or let it mount a /proc of its own (AppArmor, seccomp)"
_libc = ct.CDLL(None, use_errno=True)


def hidden_by(mountinfo: bytes) -> str:
    """The options that make /proc hide something, such as ``hidepid=invisible,subset=pid``; empty if it shows all.
    mountinfo: the text of /proc/self/mountinfo.
    """
    options = b""
    for line in mountinfo.splitlines():
        if line.split(b" ", 5)[4:5] == [b"/proc"]:
            options = line.rpartition(b" - ")[2].split(b" ")[-1]  # the last mount covers those before it
    hiding = (o for o in options.split(b",") if o.startswith((b"hidepid=", b"subset=")))
    return b",".join(o for o in hiding if o not in (b"hidepid=0", b"hidepid=off")).decode(errors="replace")


def hidden() -> str:
    """The options that make this process's /proc hide something; empty if it shows all. Raises OSError."""
    with open("/proc/self/mountinfo", "rb") as mounts:
        return hidden_by(mounts.read())


def show_all() -> None:
    """If /proc hides something, mounts one that does not, for this process and its children only. Needs CAP_SYS_ADMIN.
    Raises OSError.

    Later mounts of the host appear here too; this one does not appear there.
    """
    if not hidden():
        return
    _call(_libc.unshare(_CLONE_NEWNS), "unshare")
    _call(_libc.mount(None, b"/", None, ct.c_ulong(_MS_REC | _MS_SLAVE), None), "/")
    flags = ct.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    _call(_libc.mount(b"proc", b"/proc", b"proc", flags, b"hidepid=0"), "/proc")


def _call(result: int, what: str) -> None:
    if result:
        errno = ct.get_errno()
        raise OSError(errno, os.strerror(errno), what)
