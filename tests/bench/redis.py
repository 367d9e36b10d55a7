"""What the agent costs a Redis server: ``python -m tests.bench.redis [--pairs N] [--requests N]``.

redis-benchmark, SET and GET, 50 clients, no pipelining. Sides, interleaved: no agent; the agent as it comes
(``sampled``); two EMPTY programs on sys_enter and sys_exit; the same two with one clock read each, which no timing of
every call can do without; the agent with ``--syscalls full``, which is held against the two pairs; and, where it is
installed, bpftrace with two empty programs.
"""

from __future__ import annotations

import shutil

from tests.bench.common import (
    READ_CLOCK,
    Load,
    Redis,
    arguments,
    bpftrace_probes,
    empty_system_call_probes,
    interleaved,
    ratio,
    redis_server,
    report,
    running,
)


def with_agent(server: Redis, requests: int, *args: str) -> Load:
    with running(*args):
        return server.load(requests)


def with_empty(server: Redis, requests: int, body: str = "") -> Load:
    with empty_system_call_probes(body):
        return server.load(requests)


def with_bpftrace(server: Redis, requests: int) -> Load:
    with bpftrace_probes():
        return server.load(requests)


def main() -> None:
    given = arguments(__doc__, requests=(200_000, "requests of each command in a run"))
    with redis_server() as server:
        sides = {
            "none": lambda: server.load(given.requests),
            "sampled": lambda: with_agent(server, given.requests),
            "empty": lambda: with_empty(server, given.requests),
            "clock": lambda: with_empty(server, given.requests, READ_CLOCK),
            "full": lambda: with_agent(server, given.requests, "--syscalls", "full"),
        }
        if shutil.which("bpftrace"):
            sides["bpftrace"] = lambda: with_bpftrace(server, given.requests)
        took = interleaved(sides, given.pairs)
    for over, under, least, peer in (
        ("sampled", "none", "0.97", "no agent"),
        ("full", "empty", "0.95", "two empty programs on sys_enter and sys_exit"),
        ("clock", "empty", "-", "two empty programs on sys_enter and sys_exit"),
        ("full", "clock", "-", "two programs that read the clock, on sys_enter and sys_exit"),
        ("empty", "none", "-", "no agent"),
        ("full", "none", "-", "no agent"),
        ("full", "bpftrace", "-", "two empty programs of bpftrace on the same tracepoints"),
    ):
        if under not in took:
            print("bpftrace is not installed: not compared")
            continue
        for command in ("SET", "GET"):
            figure = ratio(*([x.per_s[command] for x in took[side]] for side in (over, under)))
            report(
                f"redis-benchmark {command}, {over}: throughput",
                figure.text(),
                peer,
                least if least == "-" else f">= {least}",
            )
        figure = ratio(*([x.cpu_s for x in took[side]] for side in (over, under)))
        report(
            f"redis-benchmark, {over}: CPU of server and client",
            figure.text(),
            peer,
            "<= 1.04" if over == "sampled" else "-",
        )


if __name__ == "__main__":
    main()
