"""A step while no agent runs, from the last reading of the one before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.clock.clock_source import missed, to_rows
from agent.clock.last import NAME, LastReading
from agent.clock.sample import Reading
from agent.clock.timex import Timex
from agent.tables import TABLES
from tests.unit.correlate_scenarios import Host, S, latest, run

BOOT, OTHER = "11111111-2222-3333-4444-555555555555", "11111111-2222-3333-4444-555555555556"
THEN = Reading(100 * S, 1_800_000_000 * S, 7 * S, -5, 1_800_000_037 * S, 40)
STATE = Timex(65536, 10_000, 0, 500, 0, 37, 0)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def later(real: int = 0, slept: int = 0, tai: int = 0) -> Reading:
    """42 s after THEN, MONOTONIC having been slewed meanwhile."""
    return Reading(
        142 * S,
        THEN.real_mono_ns + real + slept,
        THEN.boot_mono_ns + slept,
        9_000,
        THEN.tai_mono_ns + real + slept + tai,
        60,
    )


def test_what_one_agent_keeps_the_next_one_reads(directory: int) -> None:
    first = LastReading(directory, BOOT)
    assert first.earlier is None
    first.keep(later())
    first.keep(THEN)
    assert LastReading(directory, BOOT).earlier == THEN
    assert LastReading(directory, OTHER).earlier is None, "clocks of another boot say nothing about this one's"


@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"\0" * 68, os.urandom(68), os.urandom(4096)],
    ids=["empty", "short", "zeros", "random", "long"],
)
def test_a_file_that_is_damaged_is_as_none_and_becomes_right(directory: int, content: bytes) -> None:
    os.write(fd := os.open(NAME, os.O_CREAT | os.O_WRONLY, dir_fd=directory), content)
    os.close(fd)
    one = LastReading(directory, BOOT)
    assert one.earlier is None
    one.keep(THEN)
    assert LastReading(directory, BOOT).earlier == (THEN if len(content) <= 68 else None)


def test_no_room_for_it_stops_nothing(directory: int) -> None:
    os.symlink("/dev/full", NAME, dir_fd=directory)
    one = LastReading(directory, BOOT)
    one.keep(THEN)
    assert one.earlier is None
    one.close()


@pytest.mark.parametrize(
    ("now", "kind", "size"),
    [
        (later(3 * S), "step", 3 * S),
        (later(-1_000), "step", -1_000),
        (later(-S, tai=S), "leap", -S),
        (later(-S), "step", -S),
        (later(2_000, slept=9 * S), "step", 2_000),
    ],
)
def test_the_difference_is_a_row(now: Reading, kind: str, size: int) -> None:
    (row,) = to_rows(missed(THEN, now, STATE))
    table = TABLES["clock_change"]
    assert (row["t_ns"], table.by_name["kind"].names[row["kind"]], row["size_ns"], row["err_ns"]) == (
        142 * S,
        kind,
        size,
        100,
    )
    assert (row["modes"], row["unwatched_ns"]) == (b"unwatched=42.0s", 42 * S)
    assert row["real_mono_after_ns"] - row["real_mono_before_ns"] == size
    assert row["direction"] == table.code("direction", "forward" if size > 0 else "backward")


@pytest.mark.parametrize("now", [later(), later(300), later(slept=8 * S), THEN._replace(t_ns=50 * S, real_mono_ns=0)])
def test_what_is_no_step_is_no_row(now: Reading) -> None:
    assert missed(THEN, now, STATE) == []


def test_the_finding_reports_that_no_agent_was_running() -> None:
    host = Host()
    host.step(5, -2 * S, pid=-(2**63), comm=b"")
    host.made[0].rows["unwatched_ns"] = 42 * S
    (found,) = latest(run(host, 20))
    assert (found["cause"], found["symptom"]) == ("clock_step", "clock_jump")
    assert "back by 2 s in the 42 s before boot+" in str(found["sentence"])
    assert "while no agent was running." in str(found["sentence"])
