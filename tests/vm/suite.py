"""Parts of the test suite, run on a kernel, and what came of each test."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.lab.timedaemons import chrony
from tests.vm import machine

CHECKOUT = Path(__file__).parents[2]
#: What shows that a family works, by family. ``system`` is the agent as a whole.
FAMILIES = {
    "exec": ("test_ring.py", "test_pid_namespace.py", "test_loader.py"),
    "process": ("test_process.py",),
    "tcp": ("test_tcp_connect.py", "test_tcp_close.py", "test_tcp_lab.py", "test_socket_queues.py"),
    "tls": (
        "test_tls.py",
        "test_tls_places.py",
        "test_tls_targets.py",
        "test_tls_versions.py",
        "test_tls_memory.py",
        "test_tls_results.py",
        "test_new_roots.py",
    ),
    "syscalls": ("test_syscalls.py", "test_locks.py"),
    "clock": ("test_clock.py",),
    "limiter": ("test_limiter.py",),
    "system": ("test_privilege.py", "test_equality.py"),
}
GO_BUILDS = ("plain", "pie", "stripped", "piestripped", "go1.16.15", "go1.17.13", "go1.19.13", "go1.21.13")


def files(family: str) -> list[str]:
    """The test files of a family, from the checkout's top."""
    return [f"tests/{'system' if family == 'system' else 'kernel'}/{name}" for name in FAMILIES[family]]


def family_of(test: str) -> str:
    """The family of a test as pytest names it."""
    return next(family for family in FAMILIES if test.partition("::")[0] in files(family))


@dataclass(frozen=True)
class Result:
    """outcome: passed, failed or skipped. detail: of a failure, or why it was skipped."""

    test: str
    outcome: str
    seconds: float
    detail: str


@dataclass(frozen=True)
class Run:
    """results: of each test that was run, none where pytest did not get that far; then ``outcome`` says why."""

    outcome: machine.Outcome
    results: tuple[Result, ...]

    def counts(self, family: str) -> Counter[str]:
        return Counter(r.outcome for r in self.results if family_of(r.test) == family)


def prepare(builds: tuple[str, ...] = GO_BUILDS) -> None:
    """Builds and fetches on this machine what would take an emulated one long, or a network: it finds them in their
    caches.
    """
    from tests.kernel.go_fixture import go_binary
    from tests.kernel.test_tls_versions import RELEASES, Tree

    for kind in builds:
        with contextlib.suppress(pytest.skip.Exception):  # the test that needs it skips for the same reason
            go_binary(kind)
    for release in RELEASES if builds == GO_BUILDS else ():
        with contextlib.suppress(pytest.skip.Exception):
            Tree(release)


def with_chronyd() -> str:
    """PATH with the folder of a chronyd, which a machine without a network cannot fetch: the test that needs one fails
    where there is none.
    """
    path = os.environ["PATH"]
    with contextlib.suppress(pytest.skip.Exception):
        path += f":{Path(chrony('chronyd')).parent}"
    return path


def run(
    kernel: str,
    tests: list[str],
    out: Path,
    *,
    limit_s: float,
    first: str = "",
    last: str = "",
    env: dict[str, str] | None = None,
    echo: bool = False,
) -> Run:
    """Runs pytest on a kernel. Leaves junit.xml, log and console in ``out``, which must exist.

    tests: pytest's arguments. first, last: shell commands to run before, and after, when $status is pytest's. Raises
    what ``machine.run`` raises.
    """
    script = f'{first}\n"$@" --junitxml=/run/out/junit.xml -o junit_family=xunit1\nstatus=$?\n{last}\nexit $status'
    command = [
        "sh",
        "-c",
        script,
        "sh",
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-v",
        "--color=no",
        "--tb=short",
        "-o",
        "timeout=0",
        "--all",
        "-o",
        f"faulthandler_timeout={machine.STILL_S / 2:.0f}",
        *tests,
    ]
    (out / "junit.xml").unlink(missing_ok=True)
    try:
        done = machine.run(kernel, command, limit_s=limit_s, cwd=CHECKOUT, out=out, env=env, echo=echo)
    except TimeoutError as error:
        (out / "log").write_text(str(error))
        raise
    (out / "log").write_text(done.output)
    (out / "console").write_text(done.console)
    return Run(done, tuple(_results(out / "junit.xml")))


def _results(report: Path) -> Iterator[Result]:
    """Results of pytest's report (xunit1: each case has its file)."""
    if not report.exists():
        return
    for case in ET.parse(report).iter("testcase"):
        outcome, detail = "passed", ""
        for kind, word in (("skipped", "skipped"), ("failure", "failed"), ("error", "failed")):
            for element in case.findall(kind):
                outcome, detail = word, f"{element.get('message', '')}\n{element.text or ''}"
        yield Result(f"{case.get('file')}::{case.get('name')}", outcome, float(case.get("time", 0)), detail)


def jobs() -> int:
    """How many machines at once: each has two processors, and waits half of its time."""
    return max(1, (os.cpu_count() or 2))
