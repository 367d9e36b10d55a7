"""From a clock step to the program that is notified: ``python -m tests.bench.notices [--steps N] [--rate N]``. As root.

A program steps the wall clock by 1 us, half of the times forward, then back; another reads the notice socket, first an
ordinary program, then one of real-time priority: what is between the two is the scheduler's, which lets whoever has the
processor finish its slice first. Not both at a time: the second would take the processor from the first before that has
read. A notice's time is from the step's call having returned to the subscriber having read it (so less than nothing
where the watch ran on another processor meanwhile). First the agent has nothing else to do, then it drains ``--rate``
records a second and seals them. In the same run two programs look at REALTIME - MONOTONIC, one every 125 ms, as
CockroachDB does, and one every second: when each could first tell, and how many jumps it saw.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from agent.cli.cells import duration
from agent.store import segments
from tests.bench.common import arguments, report, running
from tests.bench.flood import flood
from tests.kernel.clock_rig import PROLOGUE
from tests.lab.hostclock import clock_to_ourselves
from tests.system.agent import Agent

_SIZE_NS = 1_000
_STEPPER = (
    PROLOGUE
    + f"""
import random
count, pause, returned = int(sys.argv[1]), float(sys.argv[2]), []
print(os.getpid(), flush=True)
try:
    for i in range(count):
        time.sleep(random.uniform(0.5, 1.5) * pause)
        assert step("clock_adjtime", {_SIZE_NS} if i < count // 2 else -{_SIZE_NS}) >= 0
        returned.append(time.clock_gettime_ns(time.CLOCK_BOOTTIME))
finally:
    step("clock_adjtime", {_SIZE_NS} * (max(len(returned) - count // 2, 0) - min(len(returned), count // 2)))
print(*returned)
"""
)
_SUBSCRIBER = """
import os, socket, sys, time
if sys.argv[2:]:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
notices = socket.socket(socket.AF_UNIX)
notices.connect(sys.argv[1])
notices.shutdown(socket.SHUT_WR)
while data := notices.recv(65536):
    at = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    for line in data.splitlines():
        print(at, line.decode(), flush=True)
"""
_POLLER = """
import sys, time
def offset():
    reads = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(5)]
    return min((after - before, real - (before + after) // 2) for before, real, after in reads)[1]
while True:
    print(time.clock_gettime_ns(time.CLOCK_BOOTTIME), offset(), flush=True)
    time.sleep(float(sys.argv[1]))
"""


@contextlib.contextmanager
def program(script: str, *args: str) -> Iterator[IO[str]]:
    """A Python program that writes into the file, of a session of its own as a service is (the scheduler shares the
    processors among sessions first); ended with the block.
    """
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen([sys.executable, "-c", script, *args], stdout=out, start_new_session=True)
        try:
            yield out
        finally:
            process.terminate()
            process.wait()


def lines(out: IO[str]) -> list[str]:
    out.seek(0)
    return out.read().splitlines()


def words(latencies_ns: Sequence[float]) -> str:
    p99 = statistics.quantiles(latencies_ns, n=100, method="inclusive")[98]
    return f"median {duration(statistics.median(latencies_ns))}, p99 {duration(p99)}, max {duration(max(latencies_ns))}"


def polled(out: IO[str], returned: np.ndarray) -> str:
    """When a poller first looked after each step, and how many differences it saw."""
    samples = np.array([line.split() for line in lines(out)], np.int64)
    first = np.searchsorted(samples[:, 0], returned)
    seen = first < len(samples)
    reported = int((np.abs(np.diff(samples[:, 1])) > _SIZE_NS // 2).sum())
    return (
        f"{words((samples[first[seen], 0] - returned[seen]).tolist())}, {reported} jumps seen for {len(returned)} steps"
    )


def measure(agent: Agent, what: str, steps: int, pause: float) -> list[tuple[str, str, str, str]]:
    """Rows to report."""
    socket = str(agent.run_dir / "notices.sock")
    with program(_POLLER, "0.125") as eighth, program(_POLLER, "1") as second:
        alone = [
            (who, *stepped(socket, steps, pause, *priority))
            for who, priority in (("", ()), (", subscriber of real-time priority", ("fifo",)))
        ]
        returned = np.sort(np.concatenate([stamps for _, _, stamps in alone]))
        peers = (("a poller each 125 ms (CockroachDB's interval)", eighth), ("a poller each second", second))
        return [
            *(
                (f"Jump notice, {what}{who}", f"{words(latencies)} (n={steps})", "-", "p99 < 1 ms")
                for who, latencies, _ in alone
            ),
            *((f"The same steps, {what}", "-", f"{name}: {polled(out, returned)}", "-") for name, out in peers),
        ]


def stepped(socket: str, steps: int, pause: float, *priority: str) -> tuple[list[int], np.ndarray]:
    """Latencies to one subscriber, and when each step had returned."""
    with program(_SUBSCRIBER, socket, *priority) as reported:
        time.sleep(1.5)
        done = subprocess.run(
            [sys.executable, "-c", _STEPPER, str(steps), str(pause)], stdout=subprocess.PIPE, text=True, check=True
        )
        time.sleep(1.5)
        stepper, *stamps = done.stdout.split()
        returned = np.array(stamps, np.int64)
        return took(reported, int(stepper), returned), returned


def took(notices: IO[str], stepper: int, returned: np.ndarray) -> list[int]:
    """From each step's return to the subscriber's read, ns. Ends the run where a step was missed, or reported
    wrongly.
    """
    steps = len(returned)
    reported = [(int(at), json.loads(notice)) for at, notice in (line.split(" ", 1) for line in lines(notices))]
    mine = [(at, notice) for at, notice in reported if notice["actor"] and notice["actor"]["pid"] == stepper]
    sizes = [_SIZE_NS] * (steps // 2) + [-_SIZE_NS] * (steps - steps // 2)
    if len(mine) != steps + steps % 2 or any(
        abs(n["size_ns"] - s) > n["err_ns"] for (_, n), s in zip(mine, sizes, strict=False)
    ):
        raise SystemExit(f"{len(mine)} notices for {steps} steps: {[n['size_ns'] for _, n in mine]}")
    return [at - end for (at, _), end in zip(mine, returned.tolist(), strict=False)]


def sealed(agent: Agent) -> int:
    """The newest sealed segment's number."""
    directory = segments.open_dir(Path(agent.store))
    return max(segments.listing(directory).sealed, default=0)


def main() -> None:
    given = arguments(
        __doc__,
        steps=(200, "of 1 us, at most 800"),
        pause=(0.15, "seconds between two, on average"),
        rate=(300_000, "records a second"),
    )
    if not 2 <= given.steps <= 800:
        raise SystemExit("--steps: from 2 to 800, so that the clock is never off by more than 0.4 ms")
    with clock_to_ourselves(), running() as agent:
        for row in measure(agent, "idle agent", given.steps, given.pause):
            report(*row)
        ours, theirs = multiprocessing.Pipe()
        filler = multiprocessing.get_context("spawn").Process(target=flood, args=(agent.pid(), given.rate, theirs))
        filler.start()
        theirs.close()
        ours.recv()
        before, start, first = agent.status()["rows"].get("limiter_decision", 0), time.monotonic(), sealed(agent)
        rows = measure(agent, "busy agent", given.steps, given.pause)
        rate = (agent.status()["rows"]["limiter_decision"] - before) / (time.monotonic() - start)
        segments_sealed = sealed(agent) - first
        ours.send("enough")
        written = ours.recv()
        filler.join()
        time.sleep(2)
        drained = agent.status()["rows"]["limiter_decision"]
        if drained != written:
            raise SystemExit(f"{drained} of {written} records drained: the figure does not count")
        for row in rows:
            report(*row)
        short = (
            ""
            if rate > 0.95 * given.rate
            else f", TOO FEW: it was kept busy, but could not do the {given.rate:,} asked for"
        )
        print(
            f"Meanwhile the busy agent drained {rate:,.0f} records a second and sealed {segments_sealed}"
            f" segments{short}"
        )


if __name__ == "__main__":
    main()
