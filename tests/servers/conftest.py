"""Fixtures that several tests of servers share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.servers.alertmanager import Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A webhook for Alertmanager."""
    with closing(Receiver()) as made:
        yield made
