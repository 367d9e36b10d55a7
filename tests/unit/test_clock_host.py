"""The host's clock as a VM reads it. No hypervisor here lends one, so the readings are made up; which device is taken,
and its clock id, are not.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from agent.clock.host_clock import HostClock, clock_of, open_host_clock

SECOND = 1_000_000_000
HOST = 77


class Clocks:
    """Two clocks that go on by 1 us a reading; the host's is ``ahead``, None where it cannot be read."""

    def __init__(self) -> None:
        self.now = 5 * SECOND
        self.ahead: int | None = 1_700_000_000 * SECOND

    def read(self, clock: int) -> int:
        self.now += 1_000
        if clock == time.CLOCK_BOOTTIME:
            return self.now
        assert clock == HOST
        if self.ahead is None:
            raise OSError(95, "no pairing of clocks")
        return self.now + self.ahead


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def test_clocks_that_go_as_clocks_do(clocks: Clocks) -> None:
    host = HostClock(HOST, clocks.read)
    for rate_ppm in (0, 500, -500, 83_333, -83_333):
        clocks.now += SECOND
        clocks.ahead += rate_ppm * 1_000
        assert host.moved() is None


@pytest.mark.parametrize("missed", [3 * SECOND, 3600 * SECOND, -SECOND])
def test_what_the_machine_missed_is_reported_once(clocks: Clocks, missed: int) -> None:
    host = HostClock(HOST, clocks.read)
    clocks.now += SECOND
    clocks.ahead += missed
    moved = host.moved()
    assert moved is not None
    assert abs(moved.size_ns - missed) <= moved.err_ns <= 10_000
    clocks.now += SECOND
    assert host.moved() is None


def test_our_own_wall_clock_does_not_matter(clocks: Clocks) -> None:
    host = HostClock(HOST, clocks.read)  # which fails on reading any other clock than BOOTTIME and the host's
    clocks.now += 60 * SECOND
    assert host.moved() is None


def test_a_clock_that_cannot_be_read_for_a_while(clocks: Clocks) -> None:
    host = HostClock(HOST, clocks.read)
    ahead, clocks.ahead = clocks.ahead, None
    assert host.moved() is None
    clocks.ahead = ahead + 7 * SECOND
    found = host.moved()
    assert found is not None
    assert abs(found.size_ns - 7 * SECOND) <= found.err_ns
    clocks.ahead = None
    late = HostClock(HOST, clocks.read)
    clocks.ahead = ahead
    assert late.moved() is None


def test_which_device_is_the_hosts(tmp_path: Path) -> None:
    devices, dev = tmp_path / "class", tmp_path / "dev"
    dev.mkdir()
    assert open_host_clock(devices, dev) is None
    for name, clock_name in (("ptp0", "igb PHC"), ("ptp1", "KVM virtual PTP"), ("ptp2", "hyperv")):
        (devices / name).mkdir(parents=True)
        (devices / name / "clock_name").write_text(clock_name + "\n")
    (dev / "ptp0").touch()
    assert open_host_clock(devices, dev) is None  # a network card's
    for name in ("ptp2", "ptp1"):
        (dev / name).touch()
        fd = open_host_clock(devices, dev)
        assert fd is not None
        assert os.readlink(f"/proc/self/fd/{fd}") == str(dev / name)
        os.close(fd)


def test_the_id_of_an_open_clock() -> None:
    """FD_TO_CLOCKID of clock_getres(2): ((~fd) << 3) | 3."""
    assert [clock_of(fd) for fd in (0, 3, 100)] == [-5, -29, -805]
