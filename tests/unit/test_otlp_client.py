"""The private names of the installed OTLP exporter that exporters/send.py and exporters/grpc_sender.py use, held to their meaning."""

from __future__ import annotations

import inspect
import subprocess
import sys

from opentelemetry.exporter.http.transport._base import BaseHTTPResult, BaseHTTPTransport
from opentelemetry.exporter.http.transport._urllib3 import Urllib3HTTPTransport
from opentelemetry.exporter.otlp.common.http import Compression, _extract_retry_after, _OTLPHTTPClient
from opentelemetry.exporter.otlp.proto.grpc import _OTLP_GRPC_CHANNEL_OPTIONS


def test_the_client_takes_and_gives_what_is_used() -> None:
    wanted = {"transport", "endpoint", "kind", "timeout", "compression", "headers", "logger"}
    assert wanted <= set(inspect.signature(_OTLPHTTPClient).parameters)
    assert list(inspect.signature(_OTLPHTTPClient.export).parameters) == ["self", "data"]
    client = _OTLPHTTPClient(Urllib3HTTPTransport(verify=True, cert=None), "http://127.0.0.1:9/", "spans")
    assert not client._shutdown_event.is_set()
    assert {"status_code", "reason", "error"} <= set(BaseHTTPResult.__dataclass_fields__)
    assert issubclass(Urllib3HTTPTransport, BaseHTTPTransport)
    assert {c.value for c in Compression} >= {"none", "gzip"}
    assert callable(_extract_retry_after)
    assert all(len(option) == 2 for option in _OTLP_GRPC_CHANNEL_OPTIONS)


def test_exporting_over_http_imports_no_sdk_no_requests_and_no_grpc() -> None:
    """What it costs in memory is a promise (64 MB for all processes), and an import is how it would be broken."""
    program = """
import sys
from exporters.config import Target
from exporters.send import HttpSender
import exporters.otlp, exporters.spans, exporters.points
HttpSender("traces", Target("http://127.0.0.1:9/v1/traces", timeout_s=0.1)).send(b"")
print(sorted(m for m in sys.modules if m in ("requests", "grpc", "opentelemetry.sdk", "pyarrow", "duckdb", "bcc", "click")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
