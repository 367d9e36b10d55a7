"""The OTLP packages are used by their public names only, what is imported is declared, and exporting over HTTP stays
small.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import time
from email.utils import formatdate
from pathlib import Path

import pytest

from exporters.send import retry_after

ROOT = Path(__file__).parents[2]
DECLARED = re.findall(r'^ +"([A-Za-z][\w.-]*)', (ROOT / "setup.py").read_text(encoding="utf-8"), re.MULTILINE)


def _imports() -> set[str]:
    """Modules, and module.name for what is taken from one."""
    found: set[str] = set()
    for path in (ROOT / "exporters").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] in ("opentelemetry", "google", "grpc")}


def test_only_public_names_are_used() -> None:
    assert len(_imports()) > 10
    assert [name for name in _imports() if any(part.startswith("_") for part in name.split("."))] == []


@pytest.mark.parametrize(
    ("start", "package"),
    [
        ("opentelemetry.proto.", "opentelemetry-proto"),
        ("grpc", "grpcio"),
        ("google.protobuf.", "protobuf"),
        ("google.rpc.", "googleapis-common-protos"),
    ],
)
def test_what_is_imported_is_declared(start: str, package: str) -> None:
    assert any(name.startswith(start) for name in _imports())
    assert package in DECLARED


@pytest.mark.parametrize(
    ("value", "seconds"), [("3600", 3600), ("0", 0), ("-5", 0), ("", 0), ("soon", 0), ("nan", 0), ("inf", 0)]
)
def test_retry_after_as_a_number(value: str, seconds: float) -> None:
    assert retry_after(value) == seconds


def test_retry_after_as_a_date() -> None:
    assert 90 < retry_after(formatdate(time.time() + 100, usegmt=True)) <= 100
    assert retry_after(formatdate(time.time() - 100, usegmt=True)) == 0
    assert retry_after("Mon, 01 Jan 99999999999 00:00:00 GMT") == 0


def test_exporting_over_http_imports_no_sdk_no_requests_and_no_grpc() -> None:
    """What it costs in memory is a promise (64 MB for all processes), and an import is how it would be broken."""
    program = """
import sys
from exporters.otlp_settings import Endpoint
from exporters.send import HttpSender
import exporters.otlp, exporters.spans, exporters.points
HttpSender("traces", Endpoint("http://127.0.0.1:9/v1/traces", timeout_s=0.1)).send(b"")
heavy = {"requests", "urllib3", "grpc", "opentelemetry.sdk", "pyarrow", "duckdb", "bcc", "click"}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
