"""How right the totals are of Go programs that ask their limiters too often to be watched all of the time, against what
they say themselves: ``python -m tests.bench.hot_truth``. As root, with Go.

Each run is a program of its own, with an agent that runs already. A figure holds where the program's own is within its
bounds.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.bench.common import arguments, running
from tests.kernel.go_fixture import go_binary
from tests.system.agent import Agent

#: What the programs do, by kind.
KINDS: dict[str, list[str]] = {
    "open loop, 10,000 a second": [
        "-rate 10000 -limit 1000 -burst 100",
        "-rate 10000 -limit 100 -burst 10",
        "-rate 10000 -limit 5000 -burst 5000",
        "-rate 10000 -limit 1000000 -burst 100",
    ],
    "open loop, 100,000 a second": [
        "-rate 100000 -limit 1000 -burst 100",
        "-rate 100000 -limit 10000 -burst 20",
        "-rate 100000 -limit 100 -burst 1000",
    ],
    "open loop, 100,000 a second, 50 callers": [
        "-rate 100000 -callers 50 -limit 1000 -burst 100",
        "-rate 100000 -callers 50 -limit 30000 -burst 3000",
        "-rate 10000 -callers 50 -limit 100 -burst 10",
    ],
    "closed loop": [
        "-limit 1000 -burst 100",
        "-limit 100 -burst 1",
        "-limit 100000 -burst 10000",
        "-limit 1000000 -burst 1000000",
        "-limit 100000 -burst 100",
    ],
    "closed loop, 50 us of work": [
        "-work 50000 -limit 1000 -burst 100",
        "-work 50000 -limit 5000 -burst 50",
        "-work 20000 -callers 4 -limit 1000 -burst 1000",
    ],
    "closed loop, 50 callers": ["-callers 50 -limit 1000 -burst 100", "-callers 50 -limit 10000 -burst 1000"],
    "five limiters": [
        "-limiters 5 -callers 5 -rate 50000 -limit 1000 -burst 100",
        "-limiters 5 -callers 10 -work 50000 -limit 100 -burst 100",
    ],
    "limit changed each 0.7 s": ["-turns 0.7 -rate 50000 -limit 2000 -burst 100", "-turns 0.7 -limit 1000 -burst 10"],
}


@dataclass
class Held:
    """Of one limiter in one run: what was told, against the truth."""

    name: str
    told: int
    truth: int
    least: int
    most: int | None
    how: str

    @property
    def holds(self) -> bool:
        return self.least <= self.truth and (self.most is None or self.truth <= self.most)

    @property
    def off(self) -> float:
        return self.told / max(self.truth, 1) - 1

    def text(self) -> str:
        return (
            f"{self.name} {self.told} of {self.truth} ({100 * self.off:+.2f} %), {self.least} to"
            f" {self.most}{'' if self.holds else ' DOES NOT HOLD'}"
        )


def trial(path: Path, args: list[str], seconds: float, agent: Agent) -> list[Held]:
    """A program that the agent has not seen before. Nothing where records were lost, as on a machine whose agent gets
    no processor.
    """
    before = _lost(agent)
    process = subprocess.Popen(
        [path, *args, "-for", str(seconds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    time.sleep(1.0)  # it is found, and its probes are there
    process.stdin.write("\n")
    process.stdin.flush()
    truth = json.loads(process.stdout.readline())
    time.sleep(3.5)  # a window after its end
    rows = [row for row in agent.json("limiters")["rows"] if row["pid"] == truth["pid"]]
    process.stdin.write("\n")
    process.communicate()
    if _lost(agent) > before:  # told as a loss, and so no total is claimed to be right
        return []
    return [
        Held(
            name,
            sum(row[name] for row in rows),
            truth[name],
            sum(_or(row[f"{name}_low"], row[name]) for row in rows),
            _sum([row[f"{name}_high"] if row["told"] != "exact" else row[name] for row in rows]),
            ",".join(row["told"] for row in rows),
        )
        for name in ("allowed", "refused")
    ]


def _lost(agent: Agent) -> int:
    return sum(int(one["count"]) for one in agent.json("status")["loss"] if one["source"] == "limiter_decisions")


def _or(value: int | None, other: int) -> int:
    return other if value is None else value


def _sum(values: list[int | None]) -> int | None:
    return None if None in values else sum(value for value in values if value is not None)


def main() -> None:
    given = arguments(__doc__, seconds=(6.0, "of each run"), rounds=(2, "of each program"), only=("", "a kind"))
    number = itertools.count()
    everything: dict[str, list[Held]] = {}
    with tempfile.TemporaryDirectory() as directory:
        with running() as agent:
            for _ in range(int(given.rounds)):
                for kind, programs in KINDS.items():
                    for args in programs if given.only in kind else []:
                        path = Path(shutil.copy(go_binary("plain", "hot"), Path(directory) / f"hot{next(number)}"))
                        held = trial(path, args.split(), given.seconds, agent)
                        everything.setdefault(kind, []).extend(held)
                        print(
                            f"  {args}: {'; '.join(one.text() for one in held)}:"
                            f" {held[0].how if held else 'records were lost, does not count'}",
                            flush=True,
                        )
    print(
        "| what | allowed is off by, median | at most | its bounds are wide, median | hold it | refused is off by,"
        " median | at most | hold it |"
    )
    for kind, found in {**everything, "all": [one for each in everything.values() for one in each]}.items():
        print(f"| {kind} | {' | '.join(_summary(found, name, name == 'allowed') for name in ('allowed', 'refused'))} |")


def _summary(found: list[Held], name: str, wide: bool) -> str:
    mine = [one for one in found if one.name == name]
    off = [abs(100 * one.off) for one in mine]
    widths = [100 * (one.most - one.least) / max(one.truth, 1) for one in mine if one.most is not None]
    width = [f"{np.median(widths):.2g} %" if widths else "-"] * wide
    return " | ".join(
        (f"{np.median(off):.2g} %", f"{max(off):.2g} %", *width, f"{sum(one.holds for one in mine)} of {len(mine)}")
    )


if __name__ == "__main__":
    main()
