"""Fixtures of the tls tests; a test module loads them with ``pytest_plugins``."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.tls_rig import Rig


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
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "1",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
            "-keyout",
            directory / "key",
            "-out",
            directory / "cert",
        ],
        check=True,
        capture_output=True,
    )
    return directory
