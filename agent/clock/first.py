"""The clock watch of the agent's start. It is forked before nearly all imports (agent/start.py) and imports what it
needs itself. agent/clock/watch_restart.py starts a later watch.
"""

from __future__ import annotations

import socket
import struct

from agent.posix import privilege

#: uid, gid; and by SCM_RIGHTS its end of the agent's socket, the listening socket, the report socket, the heartbeat
#: page.
BEGIN = struct.Struct("<II")
_FDS = 4


def serve(sock: socket.socket, parent: int) -> None:
    """Runs the watch until the agent ends (``agent.posix.child.fork``). Raises OSError."""
    message, fds, _, _ = socket.recv_fds(sock, BEGIN.size, _FDS, socket.MSG_CMSG_CLOEXEC)
    if not message:
        return
    sock.close()
    from agent.clock.watch import run_watch, set_priority

    set_priority()
    uid, gid = BEGIN.unpack(message)
    privilege.drop(uid, gid)
    privilege.die_with_parent(parent)
    agent, notices, report = (socket.socket(fileno=fd) for fd in fds[:3])
    go, steps, _, _ = socket.recv_fds(agent, 16, 1)
    if go:
        run_watch(agent, notices, report, fds[3], steps[0] if steps else -1)
