"""For every test: Ctrl-C works in the programs that tests start, and no property test fails since the machine is slow.

A shell that runs the tests in the background has SIGINT ignored, which programs inherit, Python's among them.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.lab.hostclock import clock_to_ourselves

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def own_clock() -> Iterator[None]:
    """No other run of the tests on this machine steps its clock meanwhile."""
    with clock_to_ourselves():
        yield
