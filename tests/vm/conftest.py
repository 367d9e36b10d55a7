"""A machine has limits of its own (``machine.run``): the one on every other test is not for these."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.vm import suite


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/tests/vm/" in item.path.as_posix():
            item.add_marker(pytest.mark.timeout(0))
    items.sort(
        key=lambda item: item.path.name == "test_kernels.py"
    )  # its machines take longest; the others' tests run meanwhile


@pytest.fixture(scope="session", autouse=True)
def machines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What ``begin`` of each module with a chosen test gives, by its last name: all machines at once, as many as there
    are processors.
    """
    modules = {item.module for item in request.session.items if isinstance(item, pytest.Function)}
    with ThreadPoolExecutor(suite.jobs()) as pool:
        yield {
            m.__name__.rpartition(".")[2]: m.begin(pool, tmp_path_factory)
            for m in sorted(modules, key=lambda m: m.__name__)
            if hasattr(m, "begin")
        }
