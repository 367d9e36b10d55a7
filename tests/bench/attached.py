"""What programs alone cost a Redis server, to half a percent: ``python -m tests.bench.attached [--seconds N] [--command
GET] [--over unix] [--only SIDE]``. As root.

redis-benchmark never stops; every 60 ms, in random order, other programs are attached, and the server's own count tells
how many requests that time had. What a shared machine does meanwhile falls on all alike, which whole runs of some
seconds (``redis``) do not achieve. No agent
runs: its processor time, its store and its windows are in ``redis`` and ``idle``.
"""

from __future__ import annotations

import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from agent.config import Config
from agent.kernel.kernel_source import KernelSource
from agent.kernel.loaded_families import Family, Loaded, load
from agent.kernel.loader import attach_raw
from agent.kernel.ring import SharedArray
from agent.limiters.redis_settings import RedisLimiterSettings
from agent.probes import discover
from agent.probes.syscalls import classes
from agent.redis_wire.redis_source import RedisWire
from tests.bench.common import READ_CLOCK, Redis, arguments, load_empty, redis_server, report

SLICE_S, SETTLE_S = 0.06, 0.01
#: Hit by no request. Each side attaches as many programs, since attaching and detaching disturbs too.
_UNUSED = "sched_process_exec"
Attachable = list[tuple[int, str]]


def detached(loaded: Loaded) -> dict[str, Family]:
    """The families, with nothing attached any more."""
    for family in loaded.families.values():
        if family.state != "attached":
            raise SystemExit(f"{family.probe.name} is {family.state}: {family.reason}")
        for fd in family.links.values():
            os.close(fd)
        family.links.clear()
    return loaded.families


def programs(families: Mapping[str, Family], *, timed: bool = False) -> Attachable:
    """What an agent of these families keeps attached; with the programs at sys_enter and sys_exit, as ``--syscalls
    full`` does.
    """
    return [
        (family.programs[p.function], p.target)
        for family in families.values()
        for p in family.probe.programs
        if p.kind == "raw_tp"
        and p.function in family.programs
        and (not p.on_demand or (timed and p.target in ("sys_enter", "sys_exit")))
    ]


def on_wire(loaded: Loaded, port: int) -> Attachable:
    """What reads limiters from Redis's connections, while it is attached, for a server there. No request of
    redis-benchmark is a limiter's but INCR.
    """
    wire = RedisWire(
        loaded.families["redis"],
        KernelSource(loaded),
        None,  # type: ignore[arg-type]
        RedisLimiterSettings(),
        find_ports=lambda _: frozenset({port}),
    )
    wire._find()
    family = loaded.families["redis"]
    return [(family.programs["redis_in"], "")]  # redis_out is there while somebody elsewhere is asked, or asks


def sides(port: int) -> dict[str, Attachable]:
    loaded = load(list(discover().values()))
    families = detached(loaded)
    wire = on_wire(loaded, port)
    default = {name: family for name, family in families.items() if name != "unix" or Config().probes.unix_sockets}
    SharedArray(families["syscalls"].maps["syscalls_class"], "<u8").values[:] = classes()
    empty = programs(detached(load_empty()))
    out = {
        "none": [],
        "two empty programs": empty,
        "two that read the clock": programs(detached(load_empty(READ_CLOCK))),
        "all of full": programs(default, timed=True),
        "all of sampled": programs(default),
        "limiters in Redis, attached": wire,
    }
    out |= {f"{name} alone": alone for name, family in families.items() if (alone := programs({name: family}))}
    most = max(map(len, out.values()))
    return {name: attached + [(empty[0][0], _UNUSED)] * (most - len(attached)) for name, attached in out.items()}


@contextmanager
def endless(server: Redis, command: str, over: str) -> Iterator[None]:
    at = ["-s", server.path] if over == "unix" else ["-p", str(server.port)]
    words = ["redis-benchmark", *at, "-c", "50", "-n", str(10**9), "-t", command.lower(), "-q"]
    client = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        time.sleep(2)
        yield
    finally:
        client.terminate()
        client.wait()


def served(connection: socket.socket) -> int:
    """Requests that the server has answered since its start."""
    connection.sendall(b"INFO stats\r\n")
    answer = b""
    while b"total_commands_processed:" not in answer or not answer.endswith(b"\r\n"):
        answer += connection.recv(1 << 16)
    return int(answer.partition(b"total_commands_processed:")[2].partition(b"\r")[0])


def per_s(connection: socket.socket, attachable: Attachable) -> float:
    links = [attach_raw(program, target) for program, target in attachable]
    try:
        time.sleep(SETTLE_S)
        before, start = served(connection), time.monotonic()
        time.sleep(SLICE_S)
        return (served(connection) - before) / (time.monotonic() - start)
    finally:
        for fd in links:
            os.close(fd)


def mean_ratio(over: list[float], under: list[float]) -> str:
    """Round by round: the mean of the ratios' logarithms without the lowest and highest fifth, and its standard error
    (bootstrap).
    """
    logs = np.log(np.array(over) / np.array(under))
    rng = np.random.default_rng(0)

    def trimmed(values: np.ndarray) -> float:
        cut = len(values) // 5
        return float(np.sort(values)[cut : len(values) - cut].mean())

    error = statistics.stdev(trimmed(rng.choice(logs, len(logs))) for _ in range(500))
    return f"{np.exp(trimmed(logs)):.3f} +- {error:.3f} (n={len(logs)})"


def main() -> None:
    given = arguments(
        __doc__,
        seconds=(300.0, "in all"),
        command=("SET", "of redis-benchmark"),
        over=("tcp", "or unix: by its Unix socket"),
        only=("", "this side alone, beside none"),
    )
    with (
        redis_server() as server,
        endless(server, given.command, given.over),
        socket.create_connection(("127.0.0.1", server.port)) as connection,
    ):
        attachable = sides(server.port)
        attachable = {name: one for name, one in attachable.items() if not given.only or name in ("none", given.only)}
        found: dict[str, list[float]] = {name: [] for name in attachable}
        order = list(attachable)
        end, output = time.monotonic() + given.seconds, time.monotonic()
        while time.monotonic() < end:
            random.shuffle(order)
            for name in order:
                found[name].append(per_s(connection, attachable[name]))
            if time.monotonic() - output > 30:
                output = time.monotonic()
                print(f"{len(found['none'])} rounds, {end - output:.0f} s to go", file=sys.stderr, flush=True)
    for name in attachable:
        for under in ("none", "two empty programs"):
            if name != under and (under == "none" or name in ("two that read the clock", "all of full")):
                report(
                    f"redis-benchmark {given.command} ({given.over}), {name}: throughput",
                    mean_ratio(found[name], found[under]),
                    under,
                    "-",
                )


if __name__ == "__main__":
    main()
