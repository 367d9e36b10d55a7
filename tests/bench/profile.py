"""What an on-demand profile costs a Redis server while it lasts: ``python -m tests.bench.profile [--seconds N]
[--command GET]``. As root.

As ``attached``, for the programs that are attached for seconds only: each family at the server itself ("of it"), and at
another process ("beside it"), which is what everybody else on the host pays meanwhile. Beside the throughput the
server's own processor time a request, on which other work of the machine tells less.
"""

from __future__ import annotations

import os
import random
import socket
import time
from pathlib import Path

import numpy as np

from agent.kernel.loaded_families import load
from agent.kernel.loader import attach_raw
from agent.kernel.ring import SharedArray
from agent.probes import discover
from tests.bench.attached import SETTLE_S, SLICE_S, Attachable, detached, endless, mean_ratio, served
from tests.bench.common import arguments, load_empty, redis_server, report

_UNUSED = "sched_process_exec"
_NONE = "none"


def sides() -> tuple[dict[str, tuple[Attachable, bool]], np.ndarray]:
    """What is attached, and whether the server is what is looked at; and the control map."""
    loaded = load([probe for probe in discover().values() if probe.profiling])
    families = detached(loaded)
    by_family = {
        name: [(family.programs[p.function], p.target) for p in family.probe.programs if p.function in family.programs]
        for name, family in families.items()
    }
    empty = next(iter(detached(load_empty()).values())).programs
    filler = (next(iter(empty.values())), _UNUSED)
    every = [one for its in by_family.values() for one in its]
    quiet = [one for name, its in by_family.items() if name != "calls" for one in its]
    out: dict[str, tuple[Attachable, bool]] = {_NONE: ([], False)}
    for name, chosen in {**by_family, "all but calls": quiet, "all": every}.items():
        out |= {f"{name}, of it": (chosen, True), f"{name}, beside it": (chosen, False)}
    most = len(every)
    padded = {name: (its + [filler] * (most - len(its)), of_it) for name, (its, of_it) in out.items()}
    return padded, SharedArray(loaded.shared["control"], loaded.wire.dtype("control")).values


def _ran_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def measured(connection: socket.socket, pid: int, attachable: Attachable) -> tuple[float, float]:
    """(requests a second, processor time of the server a request, ns) of a slice."""
    links = [attach_raw(program, target) for program, target in attachable]
    try:
        time.sleep(SETTLE_S)
        before, start, ran = served(connection), time.monotonic(), _ran_ns(pid)
        time.sleep(SLICE_S)
        took, ran = time.monotonic() - start, _ran_ns(pid) - ran
        requests = max(1, served(connection) - before)
        return requests / took, ran / requests
    finally:
        for fd in links:
            os.close(fd)


def main() -> None:
    given = arguments(__doc__, seconds=(300.0, "in all"), command=("SET", "of redis-benchmark"))
    attachable, control = sides()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in attachable}
    order = list(attachable)
    with (
        redis_server() as server,
        endless(server, given.command, "tcp"),
        socket.create_connection(("127.0.0.1", server.port)) as connection,
    ):
        control["profile_until_ns"] = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + int((given.seconds + 60) * 1e9)
        end = time.monotonic() + given.seconds
        while time.monotonic() < end:
            random.shuffle(order)
            for name in order:
                chosen, of_it = attachable[name]
                control["profile_pids"] = 0
                control["profile_pids"][0, 0] = server.process.pid if of_it else os.getpid()
                found[name].append(measured(connection, server.process.pid, chosen))
    for i, what in enumerate(("throughput", "processor time of the server a request")):
        none = [one[i] for one in found[_NONE]]
        for name, its in found.items():
            if name != _NONE:
                output = f"redis-benchmark {given.command}, a profile: {name}: {what}"
                report(output, mean_ratio([one[i] for one in its], none), "nothing attached", "-")


if __name__ == "__main__":
    main()
