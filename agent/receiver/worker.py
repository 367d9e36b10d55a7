"""The receiver's process: takes OTLP on loopback, and hands decisions over packed. It has no privilege and no numpy.

``python -m agent.receiver.worker SOCKET SETTINGS PARENT DIRECTORY COUNTS LISTENER...``: descriptors, and the agent's
pid. SETTINGS is JSON: what the listeners are, how keys are stored, what limiters are called. COUNTS:
agent/receiver/tally.py. DIRECTORY is the run directory, which those above it need not let this user reach: below it is
one of the process's own, for gRPC. The agent's side is agent/receiver/process.py, what they tell each other
agent/receiver/wire.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import sys
from typing import Any

from agent.common.lean import without
from agent.posix import privilege
from agent.receiver.wire import ALIVE, DIRECTORY

with without("ssl"):
    import asyncio

from agent.limiters.decision import KEYS, use_salt_digest
from agent.limiters.naming import Names
from agent.receiver.link import AgentLink
from agent.receiver.mapping import Mapper
from agent.receiver.senders import Front
from agent.receiver.taking import Desk
from agent.receiver.tally import LastCounts

#: Of memory that the process may write to, its threads' stacks included. What is beyond is refused.
BUDGET_BYTES = 320 << 20
_BEAT_S = 0.25


async def run(agent: socket.socket, said: dict[str, Any], counts: LastCounts, listeners: list[socket.socket]) -> None:
    """Never returns: the process ends with the agent."""
    front = Front(counts)
    link = front.agent = AgentLink(agent, front.answered)
    desk = Desk(Mapper(KEYS[said["keys"]], Names(said["names"]), said["boot_id"]), link, counts)
    for kind, listener in zip(said["listeners"], listeners, strict=True):
        await _begin(front, desk, kind, listener)
    while True:
        told = {"counts": counts, "connections": len(front.senders)}
        await link.send(ALIVE, json.dumps(told).encode())
        await asyncio.sleep(_BEAT_S)


async def _begin(front: Front, desk: Desk, kind: str, listener: socket.socket) -> None:
    if kind == "grpc":
        from agent.receiver.grpc_server import GrpcServer

        with contextlib.suppress(FileExistsError):
            os.mkdir(DIRECTORY, 0o700)
        os.chdir(DIRECTORY)
        server = GrpcServer(desk)
        await server.start()
        front.hear(listener, server.serve)
    else:
        from agent.receiver.http import HttpServer

        front.hear(listener, HttpServer(desk).serve)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    agent, settings, parent, directory, counts, *listeners = map(int, sys.argv[1:])
    privilege.keep_only(agent, settings, directory, counts, *listeners)
    os.fchdir(directory)
    os.close(directory)
    privilege.set_name("tickscope-otlp")
    privilege.give_up_all(parent)
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_DATA, (BUDGET_BYTES, BUDGET_BYTES))
    with os.fdopen(settings) as file:
        said = json.load(file)
    use_salt_digest(bytes.fromhex(said.pop("salt")))
    tally = LastCounts(counts)
    os.close(counts)
    asyncio.run(run(socket.socket(fileno=agent), said, tally, [socket.socket(fileno=fd) for fd in listeners]))


if __name__ == "__main__":
    main()
