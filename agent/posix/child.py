"""Forks a small process, which waits for its first message before it does anything, even before it drops root."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable

from agent.posix import privilege

#: The parent's end of a SOCK_SEQPACKET pair, and the child's pid.
Child = tuple[socket.socket, int]


def fork(name: str, serve: Callable[[socket.socket, int], object]) -> Child:
    """Forks. ``serve`` gets the child's end of the socket, and the parent's pid. Only from a single-threaded process.
    Raises OSError.

    The child closes all other descriptors above stderr. It ignores Ctrl-C and the like, which the parent handles. If
    ``serve`` raises, the child prints that on stderr and exits with 1.
    """
    parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent, pid = os.getpid(), os.fork()
    if pid:
        child_end.close()
        return parent_end, pid
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        privilege.keep_only(child_end.fileno())
        privilege.set_name(name)
        serve(child_end, parent)
        status = 0
    except ConnectionError:
        status = 0  # the parent has ended, and reports it
    except Exception as error:  # noqa: BLE001 - any error is reported and must not run the parent's code
        _report(name, error)
    finally:
        os._exit(status)


def _report(name: str, error: Exception) -> None:
    try:
        import traceback  # imported late: it would enlarge each child

        text = traceback.format_exc()
    except Exception:  # noqa: BLE001 - under its own filter it may not be able to import
        text = f"{type(error).__name__}: {error}\n"
    os.write(2, f"{name}: {text}".encode(errors="backslashreplace"))
