"""From an event to its row in ``query``: ``python -m tests.bench.latency [--events N]``.

A process of its own ends one slow flock every 250 ms, and connects once. The store is asked over and over, as
``tickscope query`` does; a row is visible when the answer that holds it is there. The command itself adds its own
start.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from agent.common.clocks import boot_ns
from agent.store.query import Session
from tests.bench.common import arguments, report, running

_EVERY_S, _HELD_S = 0.25, 0.03
TABLES = {"slow_syscall": "syscall = 'flock'", "tcp_connect": "result = 'ok'"}


def slow_flock(path: str) -> int:
    """Waits for a lock that another thread holds for 30 ms; when it had it, CLOCK_BOOTTIME ns."""
    holder = os.open(path, os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)
    threading.Timer(_HELD_S, os.close, (holder,)).start()
    waiter = os.open(path, os.O_RDWR)
    fcntl.flock(waiter, fcntl.LOCK_EX)
    ended = boot_ns()
    os.close(waiter)
    return ended


def connect(listener: socket.socket) -> int:
    with socket.create_connection(listener.getsockname()):
        ended = boot_ns()
    listener.accept()[0].close()
    return ended


def events(count: int, out: Connection) -> None:
    """Makes the events; then sends their ends by table, in order."""
    ends: dict[str, list[int]] = {table: [] for table in TABLES}
    with tempfile.NamedTemporaryFile() as file, socket.create_server(("127.0.0.1", 0)) as listener:
        makers: dict[str, Callable[[], int]] = {
            "slow_syscall": lambda: slow_flock(file.name),
            "tcp_connect": lambda: connect(listener),
        }
        for _ in range(count):
            for table, make in makers.items():
                ends[table].append(make())
            time.sleep(_EVERY_S)
    out.send(ends)
    out.recv()


def visible(store: str, pid: int, seen: dict[str, list[int]]) -> float:
    """One look at the store: rows that are new get this moment. Returns how long the look took, seconds."""
    start = time.monotonic()
    with Session(store, TABLES) as session:
        for table, which in TABLES.items():
            n = session.run(f"SELECT count(*) FROM {table} WHERE pid = {pid} AND {which}").rows[0][0]
            seen[table] += [boot_ns()] * (n - len(seen[table]))
    return time.monotonic() - start


def main() -> None:
    given = arguments(__doc__, events=(40, "events of each kind"))
    with running() as agent:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=events, args=(given.events, theirs))
        process.start()
        seen: dict[str, list[int]] = {table: [] for table in TABLES}
        samples: list[float] = []
        give_up = time.monotonic() + given.events * (_EVERY_S + _HELD_S) * 2 + 20
        while min(map(len, seen.values())) < given.events and time.monotonic() < give_up:
            samples.append(visible(str(agent.store), int(process.pid or 0), seen))
        ends = ours.recv()
        ours.send("done")
        process.join()
    for table, times in seen.items():
        if len(times) != given.events:
            raise SystemExit(f"{len(times)} rows of {table} for {given.events} events")
        took = sorted((saw - end) / 1e6 for saw, end in zip(times, ends[table], strict=True))
        p99 = statistics.quantiles(took, n=100, method="inclusive")[98]
        figure = f"p50 {statistics.median(took):.0f} ms, p99 {p99:.0f} ms, max {took[-1]:.0f} ms (n={len(took)})"
        report(
            f"Event to visible in query, {table}",
            figure,
            f"- (one look takes {statistics.median(samples) * 1e3:.0f} ms)",
            "p99 < 1 s",
        )


if __name__ == "__main__":
    main()
