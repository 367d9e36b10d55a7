"""Fixtures of the tls tests; a test module loads them with ``pytest_plugins``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.tls_rig import Rig
from tests.servers.certificates import self_signed


@pytest.fixture
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """The families exec and tls, and those that ``@pytest.mark.parametrize("rig", [("tcp",)], indirect=True)``
    names.
    """
    one = Rig(*getattr(request, "param", ()))
    yield one
    one.close()


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ``cert`` and ``key`` for localhost, signed by itself."""
    directory = tmp_path_factory.mktemp("certs")
    self_signed(directory)
    return directory
