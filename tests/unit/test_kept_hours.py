"""What is usual at each hour, from one agent to the next."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agent.correlate.correlator import Correlator
from agent.service.hours_store import NAME, HoursStore
from tests.unit.correlate_scenarios import S
from tests.unit.test_correlate_hours import HOUR, SINCE, STEP, decision, rows_of

BOOT, OTHER = "11111111-2222-3333-4444-555555555555", "11111111-2222-3333-4444-555555555556"
MINUTE = 60 * S


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def works(correlator: Correlator, hours: int) -> None:
    for n in range(0, hours * HOUR, STEP):
        correlator.hours.step(SINCE + n, rows_of(decision(SINCE + n)))


def known(correlator: Correlator) -> int:
    """Hours that it was told of."""
    return sum(int(np.count_nonzero(its.pause)) for its in correlator.hours._before[1].values())


def test_the_next_agent_of_this_boot_knows_it(directory: int) -> None:
    first, second, third = Correlator(), Correlator(), Correlator()
    kept = HoursStore(first, directory, BOOT)
    works(first, 3)
    kept.close()
    for correlator, boot, hours in ((second, BOOT, 2), (third, OTHER, 0)):
        HoursStore(correlator, directory, boot).close()
        assert known(correlator) == hours


def test_one_that_is_killed_has_kept_what_it_knew_ten_minutes_before(directory: int) -> None:
    first, second = Correlator(), Correlator()
    kept = HoursStore(first, directory, BOOT)
    works(first, 3)
    for minute in range(1, 12):
        assert list(kept.drain(minute * MINUTE)) == []
    HoursStore(second, directory, BOOT)
    assert known(second) == 2


def test_what_is_damaged_or_cannot_be_opened_is_forgotten(tmp_path: Path, directory: int) -> None:
    first, second, third = Correlator(), Correlator(), Correlator()
    kept = HoursStore(first, directory, BOOT)
    works(first, 3)
    kept.close()
    raw = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(raw[:-9])
    HoursStore(second, directory, BOOT)
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).symlink_to("/etc/passwd")
    HoursStore(third, directory, BOOT).close()
    assert known(second) == known(third) == 0
