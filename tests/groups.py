"""Runs the tests in groups, beside each other those that do not disturb each other; without ``--all`` what CI runs.

    python -m tests.groups [--all]

A test that fails is run once more at the end, alone: tests are at the clocks and queues of a live kernel. The last line
is ``N passed, N failed, N skipped`` of all groups; the exit status is 1 where a test failed twice.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Tests at a time. CI has two processors; live tests wait for two thirds of their time, unit tests for some of it.
UNIT, LIVE = 3, 5
#: pytest's exit status where tests failed.
FAILED = 1
WORDS = {"passed": "passed", "failed": "failed", "error": "failed", "errors": "failed", "skipped": "skipped"}
#: The environment of the tests with --all, and in CI: the clock's events on the kernel that most hosts have, shorter
#: times in which nothing may be found.
ALL = {"TICKSCOPE_TEST_KERNELS": "5.10 6.1 6.12 newest"}
SAMPLE = {
    "TICKSCOPE_TEST_KERNELS": "6.1",
    "TICKSCOPE_TEST_CLOCK_SIZES": "1",
    "TICKSCOPE_TEST_QUIET_S": "10",
    "TICKSCOPE_TEST_SILENCE_S": "12",
}
#: Hostile inputs for each parser, beside those of the tests.
INPUTS = 100_000


@dataclass(frozen=True)
class Group:
    """args: of pytest. env: added to the environment. workers: tests at a time (0: in pytest's own process)."""

    name: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    workers: int = 0

    def run(self, *more: str) -> tuple[int, Counter[str]]:
        """pytest's exit status, and how many tests passed, failed and were skipped."""
        command = [sys.executable, "-m", "pytest", "-q", "--durations=25", "-o", f"cache_dir=.pytest_cache/{self.name}"]
        command += ["-n", str(self.workers), "--dist", "loadscope"] if self.workers else []
        began = time.monotonic()
        done = subprocess.run(
            [*command, *self.args, *more],
            cwd=ROOT,
            env={"TICKSCOPE_TEST_PATIENCE": "3", **os.environ, **self.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        print(f"== {self.name}: {time.monotonic() - began:.0f} s\n{done.stdout}", flush=True)
        return done.returncode, counted(done.stdout)

    def again(self) -> tuple[int, Counter[str]]:
        """The tests that failed, one after another."""
        return replace(self, workers=0).run("--last-failed", "--last-failed-no-failures", "none")


def counted(output: str) -> Counter[str]:
    """What pytest's closing line says."""
    last = next((line for line in reversed(output.splitlines()) if re.search(r" in \d+\.\d+s", line)), "")
    return Counter({WORDS[word]: int(n) for n, word in re.findall(r"(\d+) (\w+)", last) if word in WORDS})


def phases(every: bool) -> list[list[Group]]:
    """Groups of a phase run beside each other, phases one after another."""
    more, env = (("--all",), ALL) if every else ((), SAMPLE)
    live = ("tests/kernel", "tests/servers", "tests/system", "tests/package", *more)
    guests = "tests/vm" if every else "tests/vm/test_clock.py"
    return [
        [Group("unit", ("tests/unit", *more), env, UNIT)],  # first: .ci/run has mypy run beside it
        [Group("machines", (guests, *more), env)],  # with nothing beside them: emulated clocks are slow to read
        [Group("live", (*live, "-m", "not alone"), env, LIVE)],
        [Group("alone", (*live, "-m", "alone"), env)],
    ]


def fuzzed() -> bool:
    """Whether no hostile input breaks a parser."""
    modules = sorted(path.stem for path in (ROOT / "tests/unit").glob("[!t]*_pieces.py"))
    commands = [[sys.executable, "-m", f"tests.unit.{module}", str(INPUTS)] for module in modules]
    return all(subprocess.run(command, cwd=ROOT, check=False).returncode == 0 for command in commands)


def main(every: bool) -> int:
    """The exit status: 1 where a test failed twice, or pytest did not get to its end."""
    total, to_repeat, broken = Counter[str](), list[Group](), False
    with ThreadPoolExecutor() as pool:
        for phase in phases(every):
            for group, (status, found) in zip(phase, pool.map(Group.run, phase), strict=True):
                if status == FAILED:
                    to_repeat.append(group)
                    found["failed"] = 0  # counted when they are repeated
                broken |= status not in (0, FAILED)
                total += found
    for group in to_repeat:
        print(f"== {group.name}: FAILED AT FIRST, see above; now once more, alone", flush=True)
        status, found = group.again()
        broken |= status != 0
        total += found
    broken |= every and not fuzzed()
    failed = max(total["failed"], int(broken))
    print(f"{total['passed']} passed, {failed} failed, {total['skipped']} skipped", flush=True)
    return int(broken)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.groups")
    parser.add_argument("--all", action="store_true", help="every test, on four kernels, and long fuzzing")
    sys.exit(main(parser.parse_args().all))
