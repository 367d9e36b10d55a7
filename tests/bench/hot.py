"""What is left of the throughput of a Go program that asks its limiter all the time, and how right its totals are:
``python -m tests.bench.hot``. As root, with Go.

Beside it bpftrace, which attaches an empty program to the same function's begin for good. ``--program FILE``: a build
of tests/kernel/goprograms/hot.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.common import arguments, interleaved, ratio, report, running
from tests.kernel.go_fixture import go_binary
from tests.system.agent import Agent

#: Calls a second, 0: a closed loop; and how they are made.
LOADS = {
    "closed loop": [],
    "open loop, 10,000 a second": ["-rate", "10000"],
    "open loop, 100,000 a second": ["-rate", "100000"],
    "open loop, 1,000,000 a second": ["-rate", "1000000"],
    "closed loop, 50 us of work each": ["-work", "50000"],
}


@dataclass
class Run:
    """truth: what the program says."""

    truth: dict[str, Any]
    reported: dict[str, Any] | None = None

    @property
    def per_s(self) -> float:
        return float((self.truth["allowed"] + self.truth["refused"]) / self.truth["seconds"])


def run(path: Path, load: list[str], seconds: float, agent: Agent | None = None) -> Run:
    process = subprocess.Popen(
        [path, *load, "-limit", "1000", "-burst", "1000", "-for", str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    time.sleep(1.0)  # it is found, and its probes are there
    process.stdin.write("\n")
    process.stdin.flush()
    truth = json.loads(process.stdout.readline())
    time.sleep(3.5 if agent else 0.1)  # a window after its end
    reported = (
        next((row for row in agent.json("limiters")["rows"] if row["pid"] == truth["pid"]), None) if agent else None
    )
    process.stdin.write("\n")
    process.communicate()
    return Run(truth, reported)


@contextlib.contextmanager
def bpftrace(path: Path) -> Iterator[None]:
    probe = f'uprobe:{path}:"golang.org/x/time/rate.(*Limiter).reserveN" {{ }} interval:s:1 {{ printf("on\\n"); }}'
    with subprocess.Popen(["bpftrace", "-e", probe], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as peer:
        assert peer.stdout is not None and peer.stderr is not None
        try:
            if not any(line == "on\n" for line in peer.stdout):
                raise SystemExit(f"bpftrace does not attach: {peer.stderr.read()}")
            yield
        finally:
            peer.terminate()


def traced(path: Path, load: list[str], seconds: float) -> Run:
    with bpftrace(path):
        return run(path, load, seconds)


def right(reported: dict[str, Any] | None, truth: dict[str, Any]) -> str:
    if reported is None:
        return "not seen"
    inside = [
        f"{n} {reported[n] / max(truth[n], 1):.3f} of the truth, "
        + (
            "bounds hold it"
            if (reported[f"{n}_low"] or 0) <= truth[n] <= (reported[f"{n}_high"] or 1 << 62)
            else "BOUNDS DO NOT HOLD IT"
        )
        for n in ("allowed", "refused")
    ]
    return f"{reported['basis']}: " + "; ".join(inside)


def main() -> None:
    given = arguments(
        __doc__,
        seconds=(10.0, "of each run"),
        program=("", "a build of tests/kernel/goprograms/hot"),
        only=("", "a load"),
    )
    with tempfile.TemporaryDirectory() as directory:
        path = Path(shutil.copy(given.program or go_binary("plain", "hot"), Path(directory) / "hot"))
        for name, load in ((name, load) for name, load in LOADS.items() if given.only in name):
            alone = [run(path, load, given.seconds) for _ in range(given.pairs)]
            with running() as agent:
                watched = [run(path, load, given.seconds, agent) for _ in range(given.pairs)]
            report(
                f"throughput, {name}",
                ratio([r.per_s for r in watched], [r.per_s for r in alone]).text(),
                "no agent",
                "0.9",
            )
            for each in watched:
                print(f"  {right(each.reported, each.truth)}", flush=True)
            if shutil.which("bpftrace"):
                peer = interleaved({"bpftrace": lambda load=load: traced(path, load, given.seconds)}, given.pairs)[
                    "bpftrace"
                ]  # type: ignore[misc]
                report(
                    f"throughput, {name}, bpftrace",
                    ratio([r.per_s for r in peer], [r.per_s for r in alone]).text(),
                    "nothing attached",
                    "-",
                )


if __name__ == "__main__":
    main()
