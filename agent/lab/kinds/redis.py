"""Faults of Redis itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import hiredis

from agent.common.resp import RedisUrl, RespClient
from agent.lab.kind import Fault, Kind, Offender, Right, Size
from agent.lab.program import LabProgram
from agent.lab.programs.redis_server import PLACES, PORT
from agent.lab.stage.stage import GUESTS, Stage

#: Runs for ARGV[1] milliseconds by the server's clock; no other command is served meanwhile.
BLOCKING = """
local function now() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 end
local from = now()
while now() - from < tonumber(ARGV[1]) do end
return 1
"""
Command = Callable[[float], tuple[object, ...]]


def _send(client: RespClient, *commands: tuple[object, ...]) -> None:
    """Raises hiredis.ReplyError if the server refuses, so that the run's error log explains a missing impact."""
    for reply in client.pipeline(list(commands)):  # type: ignore[arg-type]
        if isinstance(reply, hiredis.ReplyError):
            raise reply


def _client(program: LabProgram) -> RespClient:
    """Of a Redis of the workload."""
    address, port = program.listens or (PLACES[program.name], PORT)
    return RespClient(RedisUrl.parse(f"redis://{address}:{port}/0"), timeout_s=30)


def busy(command: Command) -> Callable[[Stage, Fault], AbstractContextManager[Offender]]:
    """A client sends a command that takes long."""

    @contextmanager
    def inject(stage: Stage, fault: Fault) -> Iterator[Offender]:
        server = stage.programs[fault.target]
        stage.processes.fork(
            lambda: _send(_client(server), command(fault.size)), GUESTS, server.space, "lab-asker", root=False
        )
        yield Offender(fault.target)

    return inject


@contextmanager
def full_of_clients(stage: Stage, fault: Fault) -> Iterator[Offender]:
    """The server refuses clients: all are disconnected, and come back to a server that has no room beside the client
    that did this.
    """
    with send_setting(
        stage,
        fault,
        (("CONFIG", "SET", "maxclients", 1), ("CLIENT", "KILL", "TYPE", "normal")),
        ("CONFIG", "SET", "maxclients", 10000),
    ):
        yield Offender(fault.target)


@contextmanager
def refusing(stage: Stage, fault: Fault) -> Iterator[Offender]:
    """The server listens on another port: all clients are disconnected, and their reconnects are refused."""
    with send_setting(
        stage,
        fault,
        (("CONFIG", "SET", "port", PORT + 1), ("CLIENT", "KILL", "TYPE", "normal")),
        ("CONFIG", "SET", "port", PORT),
    ):
        yield Offender(fault.target)


@contextmanager
def full_of_data(stage: Stage, fault: Fault) -> Iterator[Offender]:
    """The server refuses writes: its memory limit is reached."""
    with send_setting(stage, fault, (("CONFIG", "SET", "maxmemory", 1),), ("CONFIG", "SET", "maxmemory", 0)):
        yield Offender(fault.target)


@contextmanager
def read_only(stage: Stage, fault: Fault) -> Iterator[Offender]:
    """The server refuses writes: it is the replica of a server that does not answer, as after a failed failover."""
    with send_setting(stage, fault, (("REPLICAOF", "127.0.0.1", "1"),), ("REPLICAOF", "NO", "ONE")):
        yield Offender(fault.target)


@contextmanager
def send_setting(
    stage: Stage, fault: Fault, commands: tuple[tuple[object, ...], ...], after: tuple[object, ...]
) -> Iterator[None]:
    """Uses one connection throughout: a full server accepts no other one to undo it."""
    server = stage.programs[fault.target]
    done_r, done_w = os.pipe()

    def both() -> None:
        client = _client(server)
        for command in commands:
            _send(client, command)
        sys.stdin.read()
        _send(client, after)

    pid = stage.processes.fork(both, GUESTS, server.space, "lab-operator", root=False, stdin=done_r)
    os.close(done_r)
    try:
        yield
    finally:
        os.close(done_w)
        os.waitpid(pid, 0)


_ALL = tuple(PLACES)
_SLOW = (Right("broker_slow"),)
_BUSY = (*_SLOW, Right("busy"))
#: Makes a list and sorts it.
BIG_KEY = (
    "for i = 1, ARGV[1] do redis.call('RPUSH', 'big', i) end redis.call('SORT', 'big', 'ALPHA', 'LIMIT', 0, 1) return"
    " redis.call('DEL', 'big')"
)
KINDS = (
    Kind(
        "broker_script",
        "a script blocks Redis",
        Size("duration_s", 0.15, 4.0),
        _ALL,
        _BUSY,
        busy(lambda s: ("EVAL", BLOCKING, 0, int(s * 1000))),
    ),
    Kind(
        "broker_sleep",
        "Redis sleeps (DEBUG SLEEP)",
        Size("duration_s", 0.15, 4.0),
        _ALL,
        (Right("process_wait", "clock_nanosleep", culprit=True), *_SLOW),
        busy(lambda s: ("DEBUG", "SLEEP", f"{s:.3f}")),
    ),
    Kind(
        "broker_big_key",
        "Redis sorts a big key",
        Size("elements", 2e5, 2e6),
        _ALL,
        _BUSY,
        busy(lambda n: ("EVAL", BIG_KEY, 0, int(n))),
    ),
    Kind(
        "broker_full_clients",
        "Redis takes no more clients",
        Size("duration_s", 0.5, 6.0),
        _ALL,
        (Right("resource_limit", "clients"), Right("broker_down")),
        full_of_clients,
    ),
    Kind(
        "broker_refusing",
        "Redis runs, but connections to it are refused",
        Size("duration_s", 0.5, 6.0),
        _ALL,
        (Right("broker_down"),),
        refusing,
    ),
    Kind(
        "broker_full_memory",
        "Redis refuses to write: its memory is full",
        Size("duration_s", 1.0, 6.0),
        ("redis",),
        (Right("resource_limit", "memory"),),
        full_of_data,
    ),
    Kind(
        "broker_read_only",
        "Redis refuses to write: it is a replica without a primary",
        Size("duration_s", 0.5, 6.0),
        _ALL,
        (Right("failover", culprit=True), Right("broker_down")),
        read_only,
    ),
)
