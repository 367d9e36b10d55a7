"""The receiver's process: takes OTLP on loopback, and hands decisions over packed. It has no privilege and no numpy.

``python -m agent.receiver.worker SOCKET SETTINGS PARENT DIRECTORY``: descriptors, and the agent's pid. SETTINGS is JSON: where to listen, how keys are stored, what limiters are called.
DIRECTORY is the run directory, which those above it need not let this user reach: below it is one of the process's own, for gRPC. The agent's side is agent/receiver/process.py, what they tell each other agent/receiver/wire.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import sys
from collections import Counter
from typing import Any

from agent.common.lean import without
from agent.posix import privilege
from agent.receiver.wire import ALIVE, COUNTS, DIRECTORY, SAID_CHARACTERS

with without("ssl"):
    import asyncio

from agent.limiters.decision import KEYS, use_salt_digest
from agent.limiters.naming import Names
from agent.receiver.link import AgentLink
from agent.receiver.mapping import Mapper
from agent.receiver.senders import Front
from agent.receiver.taking import Desk

#: Of memory that the process may write to, its threads' stacks included. What is beyond is refused.
BUDGET_BYTES = 320 << 20
_BEAT_S = 0.25
#: An address that is taken is tried again.
_AGAIN_S = 2.0


async def run(agent: socket.socket, said: dict[str, Any]) -> None:
    """Never returns: the process ends with the agent."""
    counts, failures = Counter(dict.fromkeys(COUNTS, 0)), dict[str, str]()
    front = Front(counts)
    link = front.agent = AgentLink(agent, front.answered)
    desk = Desk(Mapper(KEYS[said["keys"]], Names(said["names"]), said["boot_id"]), link, counts)
    beginning = [asyncio.create_task(_begin(front, desk, kind, tuple(said[kind]), said, failures)) for kind in ("http", "grpc") if said[kind]]  # fmt: skip
    while True:
        told = {"counts": counts, "failures": {k: v[:SAID_CHARACTERS] for k, v in failures.items()}, "connections": len(front.senders)}  # fmt: skip
        await link.send(ALIVE, json.dumps(told).encode())
        await asyncio.sleep(_BEAT_S)
        for task in [one for one in beginning if one.done()]:
            beginning.remove(task)
            task.result()  # what it did not expect ends the process, and the agent tells


async def _begin(front: Front, desk: Desk, kind: str, address: tuple[str, int], said: dict[str, Any], failures: dict[str, str]) -> None:  # fmt: skip
    if kind == "grpc":
        from agent.receiver.grpc_server import GrpcServer

        with contextlib.suppress(FileExistsError):
            os.mkdir(DIRECTORY, 0o700)
        os.chdir(DIRECTORY)
        server = GrpcServer(desk)
        await server.start()
        serve = server.serve
    else:
        from agent.receiver.http import HttpServer

        serve = HttpServer(desk).serve
    while True:
        try:
            front.listen(address, serve)
            break
        except OSError as error:
            failures[f"otlp_receiver.{kind}"] = f"cannot listen on {address[0]} port {address[1]}: {error.strerror}"
            await asyncio.sleep(_AGAIN_S)
    failures.pop(f"otlp_receiver.{kind}", None)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    agent, settings, parent, directory = map(int, sys.argv[1:5])
    privilege.keep_only(agent, settings, directory)
    os.fchdir(directory)
    os.close(directory)
    privilege.set_name("tickscope-otlp")
    privilege.give_up_all(parent)
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_DATA, (BUDGET_BYTES, BUDGET_BYTES))
    with os.fdopen(settings) as file:
        said = json.load(file)
    use_salt_digest(bytes.fromhex(said.pop("salt")))
    asyncio.run(run(socket.socket(fileno=agent), said))


if __name__ == "__main__":
    main()
