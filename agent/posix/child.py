"""Forking a process that is to be small, and that waits for its first message before it does anything, also before it
gives up root.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable

from agent.posix import privilege

#: The parent's end of a SOCK_SEQPACKET pair, and the child's pid.
Child = tuple[socket.socket, int]


def fork(name: str, serve: Callable[[socket.socket, int], object]) -> Child:
    """``serve`` gets the child's end, and the parent's pid. Only from a single-threaded process. Raises OSError.

    The child keeps nothing else that is open above stderr. Ctrl-C and the like are its parent's to answer. Where
    ``serve`` raises, that is told on stderr and the exit status is 1.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent, pid = os.getpid(), os.fork()
    if pid:
        theirs.close()
        return ours, pid
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        privilege.keep_only(theirs.fileno())
        privilege.set_name(name)
        serve(theirs, parent)
        status = 0
    except ConnectionError:
        status = 0  # the parent has ended, which is for it to tell
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told, and must not run the parent's code
        _tell(name, error)
    finally:
        os._exit(status)


def _tell(name: str, error: Exception) -> None:
    try:
        import traceback  # here, since it would cost each child its size

        text = traceback.format_exc()
    except Exception:  # noqa: BLE001 - under its own filter it may not be able to import
        text = f"{type(error).__name__}: {error}\n"
    os.write(2, f"{name}: {text}".encode(errors="backslashreplace"))
