"""Files that are examined and attached to, once it works: failures and refusals are tried again, and what was reported
of them is taken back.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.common.fairness import NoPlaceError, Places
from agent.kernel.limits import TRIES
from agent.kernel.steps import BlockedError, Steps, at_once, pump_until, run
from agent.targets.analyzer_pool import AnalyzerPool
from agent.targets.asked import HOST, FileId, Owner, ProbeRequest, Target
from agent.targets.files import Files
from agent.targets.unprobed import UnprobedPrograms

USER = Owner(100, 1000, "user")


class Attaching:
    """Attaches to a program with so many descriptors, or fails with what is next of ``errors``."""

    def __init__(self, *errors: Exception, cost: int = 0) -> None:
        self.errors, self.cost, self.offered, self.live = list(errors), cost, 0, 0

    def found(self, target: Target, analysis: object) -> Steps[Any]:
        del analysis
        self.offered += 1
        yield at_once(lambda: None)
        if self.errors:
            raise self.errors.pop(0)
        target.reserve(self.cost, self.cost)
        self.live += 1
        return self

    def close(self) -> None:
        self.live -= 1


class Bench:
    def __init__(self, *attaching: Attaching, limit: int = 1024) -> None:
        self.analyzers, self.unprobed_programs, self.shares = (
            AnalyzerPool(1),
            UnprobedPrograms(),
            Places(limit // 2, what="probe descriptors"),
        )
        self.files = Files(
            self.analyzers, lambda fds: at_once(lambda: b""), self.shares, self.unprobed_programs, Counter(), multi=True
        )
        self.asks = [
            ProbeRequest("functions", one.found, f"test{number}", {"names": []}) for number, one in enumerate(attaching)
        ]

    def offer(self, path: Path, owner: Owner = HOST) -> FileId:
        got: list[Any] = []
        fd = os.open(path, os.O_RDONLY)
        run(self.files.offer(owner, str(path), fd, [], self.asks), lambda value, error: got.append((value, error)))
        assert pump_until(lambda: bool(got), [self.analyzers], 60)
        os.close(fd)
        value, error = got[0]
        assert error is None, error
        return FileId(*value)

    def reported(self) -> list[str]:
        return [str(one["reason"]) for one in self.unprobed_programs.reported()]

    def gone(self, file: FileId) -> bool:
        """Nobody uses it in two scans; whether nothing is left of it."""
        for _ in range(2):
            self.files.release_unused(set())
        return not (self.files.known(file) or self.reported() or self.shares.used)

    def close(self) -> None:
        self.files.close()
        self.analyzers.close()


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Any]:
    made: list[Bench] = []

    def make(*attaching: Attaching, **more: Any) -> Bench:
        made.append(Bench(*attaching, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return Path(shutil.copy("/bin/true", tmp_path))


def test_what_failed_is_wanted_until_it_was_tried_often_enough(bench: Any, program: Path) -> None:
    one = Attaching(*(OSError(5, "Input/output error") for _ in range(TRIES)))
    files = bench(one)
    for tried in range(1, TRIES + 2):
        file = files.offer(program)
        assert one.offered == min(tried, TRIES)
        assert files.files.wanting(file) == (tried < TRIES)
        assert len(files.reported()) == 1
    assert files.gone(file)


def test_who_was_held_up_by_others_is_tried_for_ever(bench: Any, program: Path) -> None:
    one = Attaching(*(BlockedError(110, "the helper does not answer") for _ in range(3 * TRIES)))
    files = bench(one)
    for _ in range(3 * TRIES):
        assert files.files.wanting(files.offer(program))
    file = files.offer(program)
    assert one.live == 1
    assert not files.files.wanting(file)


def test_what_is_reported_of_a_failure_is_taken_back_when_it_works(bench: Any, program: Path) -> None:
    """Whoever brings the file then; and what others have attached to it stays all the while."""
    fails, works = Attaching(OSError(110, "Connection timed out")), Attaching()
    files = bench(fails, works)
    files.offer(program)
    (reason,) = files.reported()
    assert "cannot attach: Connection timed out" in reason
    files.offer(program, USER)
    assert files.reported() == []
    assert (fails.offered, works.offered) == (2, 1)
    assert (fails.live, works.live) == (1, 1)


def test_what_is_reported_of_a_refusal_is_taken_back_when_there_is_room(
    bench: Any, program: Path, tmp_path: Path
) -> None:
    """Of a user's 128 descriptors somebody has all but a few; nobody else's asks are asked again."""
    large, other = Attaching(cost=30), Attaching()
    files = bench(large, other)
    files.shares.take(USER.uid, 120)
    file = files.offer(program, USER)
    assert ["share of probe descriptors is used up" in reason for reason in files.reported()] == [True]
    assert not files.files.wanting(file)
    files.shares.give_back(USER.uid, 30)
    assert files.files.wanting(file)
    assert files.offer(program, USER) == file
    assert (large.offered, large.live, other.offered) == (2, 1, 1)
    assert files.reported() == []


def test_what_another_file_has_taken_is_asked_for_again(bench: Any, program: Path) -> None:
    """As a place for a kind of OpenSSL."""
    one = Attaching(NoPlaceError(122, "too many"), NoPlaceError(122, "too many"))
    files = bench(one)
    for _ in range(2):
        file = files.offer(program, USER)
        assert files.files.wanting(file)
        assert "too many" in files.reported()[0]
    files.offer(program, USER)
    assert (one.live, files.reported(), files.files.wanting(file)) == (1, [], False)


def test_what_is_reported_of_content_that_is_no_more_is_taken_back(bench: Any, program: Path) -> None:
    files = bench(Attaching(*(OSError(5, "Input/output error") for _ in range(TRIES))))
    for _ in range(TRIES):
        files.offer(program)
    with program.open("ab") as file:
        file.write(b"x")
    files.offer(program, USER)
    assert files.reported() == []


def test_an_elf_analyzer_that_is_killed_costs_no_file_its_probes(bench: Any, program: Path) -> None:
    """As when memory is short."""
    one = Attaching()
    files = bench(one)
    got: list[object] = []
    with program.open("rb") as file:
        run(files.files.offer(HOST, str(program), file.fileno(), [], files.asks), lambda *end: got.append(end))
        os.kill(files.analyzers.pids[0], signal.SIGKILL)
        assert pump_until(lambda: bool(got), [files.analyzers], 60)
    assert "SIGKILL" in files.reported()[0]
    key = files.offer(program)
    assert one.live == 1
    assert files.gone(key)


def test_who_asks_for_other_functions_of_a_file_gets_these(bench: Any) -> None:
    """As two families do of the C library: what was found out for one is not what the other asked."""
    got: list[Any] = []

    class Asking(Attaching):
        def found(self, target: Target, analysis: Any) -> Steps[Any]:
            got.append(sorted(analysis.facts["offsets"]))
            return (yield from super().found(target, analysis))

    files = bench(one := Asking(), two := Asking())
    for asking, name in ((one, "getaddrinfo"), (two, "adjtimex")):
        files.asks[files.asks.index(next(a for a in files.asks if a.found == asking.found))] = ProbeRequest(
            "functions", asking.found, name, {"names": [name]}
        )
    files.offer(Path("/lib/x86_64-linux-gnu/libc.so.6"))
    assert got == [["getaddrinfo"], ["adjtimex"]]
