"""A machine has limits of its own (``machine.run``): the one on every other test is not for these."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/tests/vm/" in item.path.as_posix():
            item.add_marker(pytest.mark.timeout(0))
