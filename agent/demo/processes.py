"""The workload's processes: each unprivileged, and none outlives its supervisor."""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_libc = ctypes.CDLL(None, use_errno=True)


class Children:
    """Children of this process; ``stop`` ends them all and waits."""

    def __init__(self) -> None:
        self._forked: list[int] = []
        self._programs: list[subprocess.Popen[bytes]] = []

    def fork(self, name: str, body: Callable[[], None]) -> int:
        """Runs ``body`` in a child with that command name, as user nobody. It needs no file of ours that nobody cannot
        read.
        """
        parent = os.getpid()

        def named() -> None:
            become(parent, nobody=True)
            set_name(name)
            body()

        pid = child(named)
        self._forked.append(pid)
        return pid

    def run(
        self, command: list[str], directory: Path, environment: dict[str, str] | None = None, nobody: bool = True
    ) -> subprocess.Popen[bytes]:
        """Starts another program in a process group of its own, without input; messages go to stderr. Raises
        OSError.
        """
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=partial(become, os.getpid(), nobody),
        )  # safe: this process has one thread
        self._programs.append(process)
        return process

    def stop(self) -> None:
        """SIGKILL, which also ends stopped ones; nothing of theirs is worth an orderly end. Only what was not waited
        for yet is signalled: a pid that was may be somebody else's.
        """
        for pid in self._forked:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for program in self._programs:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)
                program.wait()
        self._forked.clear()
        self._programs.clear()


def set_name(name: str) -> None:
    """The command name of the calling process, at most 15 bytes."""
    _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def child(body: Callable[[], None], *also: int) -> int:
    """Forks; the child runs ``body``, with SIGTERM, SIGINT and ``also`` at their defaults, and never returns from here.
    Its pid.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT, *also):
            signal.signal(number, signal.SIG_DFL)
        body()
        status = 0
    except BaseException:  # noqa: BLE001 - a forked child must not run into its parent's code
        traceback.print_exc()
    finally:
        os._exit(status)


def become(parent: int, nobody: bool) -> None:
    """In a new child: drops to user nobody where we are root, and dies with its parent. The order matters: a change of
    user clears the parent-death signal (prctl(2)).
    """
    if nobody and os.geteuid() == 0:
        become_nobody()
    end_with_parent()
    if os.getppid() != parent:
        os._exit(1)


def become_nobody() -> None:
    account = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)


def own_directory(path: Path) -> Path:
    """A new directory that belongs to the user of the children."""
    path.mkdir()
    if os.geteuid() == 0:
        shutil.chown(path, "nobody")
    return path
