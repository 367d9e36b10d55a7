"""Drops privileges for good: user, capabilities, no_new_privs, dumpable, parent-death signal. Linux only, through
ctypes.

Loaded before the first fork (agent/start.py), so modules that only the agent needs are imported late.

Numbers: include/uapi/linux/{capability,prctl,seccomp}.h.
"""

from __future__ import annotations

import contextlib
import ctypes as ct
import grp
import os
import pwd
import signal
import struct
from collections.abc import Callable, Iterator

from agent.arch import host

USER = "tickscope"
CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF, CAP_CHECKPOINT_RESTORE = 2, 19, 21, 38, 39, 40
CAP_SETUID = 7
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_SET_NAME, _PR_SET_SECCOMP = 1, 4, 8, 15, 22
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_CAPSET_V3 = 0x20080522
_libc = ct.CDLL(None, use_errno=True)


def _prctl(option: int, *args: int) -> None:
    values = [ct.c_ulong(a) for a in (*args, 0, 0, 0, 0)[:4]]
    if _libc.prctl(ct.c_int(option), *values) != 0:
        errno = ct.get_errno()
        raise OSError(errno, f"prctl {option}: {os.strerror(errno)}")


def _capset(permitted: int, effective: int) -> None:
    header = struct.pack("<Ii", _CAPSET_V3, 0)
    low, high = (1 << 32) - 1, 32
    data = struct.pack("<6I", effective & low, permitted & low, 0, effective >> high, permitted >> high, 0)
    if _libc.capset(ct.c_char_p(header), ct.c_char_p(data)) != 0:
        errno = ct.get_errno()
        raise OSError(errno, f"capset: {os.strerror(errno)}")


def effective_capabilities() -> int:
    """CapEff of this process as a bit mask."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1], 16) for line in status if line.startswith("CapEff"))


def missing_capabilities() -> list[str]:
    """What this process lacks to load programs, to have a helper, and to change its user. CAP_SYS_ADMIN includes
    CAP_BPF and CAP_PERFMON; these two are enough where uprobes are attached by links (kernel 6.6).
    """
    held = effective_capabilities()
    needed = {"CAP_SYS_PTRACE": CAP_SYS_PTRACE, "CAP_SETUID": CAP_SETUID}
    if not held >> CAP_SYS_ADMIN & 1:
        needed |= {"CAP_BPF": CAP_BPF, "CAP_PERFMON": CAP_PERFMON}
    return [name for name, bit in needed.items() if not held >> bit & 1]


def require_root(command: str = "sudo tickscope run") -> None:
    """Raises AgentError (exit code 5) unless this process can load programs and change its user."""
    from agent.errors import PRIVILEGE, AgentError

    if os.geteuid() != 0:
        raise AgentError(
            "tickscope needs root to load BPF programs",
            why=f"running as uid {os.geteuid()}; privileges are given up right after the programs are attached",
            remedy=command,
            exit_code=PRIVILEGE,
        )
    if missing := missing_capabilities():
        raise AgentError(
            f"root lacks {', '.join(missing)} here",
            why="a container or service manager took it away",
            remedy="run as the service of deploy/tickscope.service, by the chart in deploy/helm, or with --privileged",
            exit_code=PRIVILEGE,
        )


def closed_to_others() -> str:
    """The first directory above this package or Python's own library that other users cannot enter, or empty.

    The agent's processes import modules after they have changed their user.
    """
    from pathlib import Path

    above = [p for path in (Path(__file__), Path(os.__file__)) for p in reversed(path.resolve().parents)]
    return next((str(p) for p in above if not p.stat().st_mode & 0o001), "")


def require_readable() -> None:
    """Raises AgentError if the agent could not import its own code as its own user."""
    from agent.errors import PRIVILEGE, AgentError

    closed = closed_to_others()
    if closed:
        raise AgentError(
            f"{closed} is not readable by other users",
            why="tickscope's code or its Python lies below it, and the agent gives up root",
            remedy="install with ./run.sh (into /opt), or chmod o+x it",
            exit_code=PRIVILEGE,
        )


def service_user() -> tuple[int, int]:
    """(uid, gid) of the service's own user, created if missing. Raises AgentError if that fails."""
    try:
        entry = pwd.getpwnam(USER)
    except KeyError:
        import subprocess

        from agent.errors import PRIVILEGE, AgentError

        command = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]
        try:
            subprocess.run([*command, "--shell", "/usr/sbin/nologin", USER], check=True, capture_output=True)
            entry = pwd.getpwnam(USER)
        except (OSError, subprocess.CalledProcessError, KeyError) as error:
            detail = getattr(error, "stderr", b"") or str(error).encode()
            raise AgentError(
                f"there is no user {USER}",
                why=detail.decode().strip(),
                remedy=f"useradd --system --user-group {USER}",
                exit_code=PRIVILEGE,
            ) from error
    return entry.pw_uid, grp.getgrgid(entry.pw_gid).gr_gid


def known_user() -> tuple[int, int]:
    """(uid, gid) of the service's own user; of nobody, if there is no such user yet."""
    users = {entry.pw_name: (entry.pw_uid, entry.pw_gid) for entry in pwd.getpwall()}
    return users.get(USER) or users["nobody"]


@contextlib.contextmanager
def acting_as(uid: int, gid: int) -> Iterator[None]:
    """In the block, root accesses files as that user, with no more rights than it. A process that is no longer root is
    that user already.

    Single-threaded processes only: the C library changes the user of every thread. Raises OSError.
    """
    if os.geteuid() != 0 or uid == 0:
        yield
        return
    groups, own_gid = os.getgroups(), os.getegid()
    os.setgroups([])
    os.setegid(gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(own_gid)
        os.setgroups(groups)


def drop(uid: int, gid: int, keep: tuple[int, ...] = ()) -> None:
    """Becomes uid:gid for good, with no capability but ``keep``, no_new_privs, not dumpable. Raises OSError.

    Nothing can be regained: saved ids change too, the bounding set is emptied, no_new_privs blocks setuid programs.
    """
    for capability in range(64):
        try:
            _prctl(_PR_CAPBSET_DROP, capability)
        except OSError:
            break
    _prctl(_PR_SET_KEEPCAPS, int(bool(keep)))
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    keep_capabilities(keep)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)


def drop_unless_needed(uid: int, gid: int, capability: int, enough: Callable[[], bool]) -> None:
    """As ``drop``, but keeps ``capability`` if it is held and ``enough``, called without it, returns False. Raises
    OSError.
    """
    held = (capability,) if effective_capabilities() >> capability & 1 else ()
    drop(uid, gid, held)
    if held:
        _capset(1 << capability, 0)
        keep_capabilities(() if enough() else held)


def keep_capabilities(keep: tuple[int, ...]) -> None:
    """Drops every held capability but these. Raises OSError."""
    mask = sum(1 << c for c in keep)
    _capset(mask, mask)


def die_with_parent(parent: int) -> None:
    """Requests SIGKILL when the parent dies; exits at once if it already has. A change of user clears this: call after
    ``drop``.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def give_up_all(parent: int) -> None:
    """For a process that only computes: no capability, no_new_privs, not dumpable, ends with its parent. Raises
    OSError.
    """
    _capset(0, 0)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)
    die_with_parent(parent)


def keep_only(*fds: int) -> None:
    """Closes every descriptor above stderr but these, after a fork."""
    low = 3
    for fd in sorted(fds):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))


def set_name(name: str) -> None:
    """Sets the process's name in ps and /proc/PID/comm (15 bytes)."""
    buffer = ct.create_string_buffer(name.encode()[:15])
    _prctl(_PR_SET_NAME, ct.addressof(buffer))


def allow_only(calls: tuple[int, ...]) -> None:
    """Installs a seccomp filter: these system call numbers are allowed, all others fail with EPERM. No filter on
    processors for which the lists were not tested (``host.CONFINES``). Needs no_new_privs.
    """
    if not host.CONFINES:
        return
    load, equal, result = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
    kill, refuse, allow = 0x80000000, 0x00050001, 0x7FFF0000
    code = [(load, 0, 0, 4), (equal, 1, 0, host.AUDIT), (result, 0, 0, kill), (load, 0, 0, 0)]
    code += [(equal, len(calls) - i, 0, nr) for i, nr in enumerate(calls)]
    code += [(result, 0, 0, refuse), (result, 0, 0, allow)]
    program = ct.create_string_buffer(b"".join(struct.pack("<HBBI", *c) for c in code))
    fprog = ct.create_string_buffer(struct.pack("<HxxxxxxQ", len(code), ct.addressof(program)))
    _prctl(_PR_SET_SECCOMP, 2, ct.addressof(fprog))
