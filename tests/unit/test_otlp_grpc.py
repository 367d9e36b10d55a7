"""The two ends of the gRPC exporter's link, and answers that are none."""

from __future__ import annotations

import socket
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from exporters.grpc_link import GrpcLink, send_frame
from exporters.otlp import _remedy
from exporters.otlp_settings import Endpoint, OtlpSettings
from exporters.send import Outcome

_EXPORT = "opentelemetry.proto.collector.trace.v1.TraceService"


@pytest.mark.parametrize(
    "answer",
    [b"[]", b"{", b'{"state": "sent"}', b'{"status": "gone"}', b'{"status": "sent", "rejected": "1"}'],
)
def test_what_is_no_answer_is_a_retry(answer: bytes) -> None:
    ours, theirs = socket.socketpair()
    link = GrpcLink({"traces": Endpoint("http://127.0.0.1:9", timeout_s=1.0)})
    link._child.adopt(subprocess.Popen(["sleep", "60"]), ours)
    with theirs:
        send_frame(theirs, answer)
        outcome = link.send("traces", b"")
    assert (outcome.status, outcome.message.endswith("it sent what is no answer")) == ("retry", True)


def test_an_answer_has_a_bound() -> None:
    ours, theirs = socket.socketpair()
    link = GrpcLink({"traces": Endpoint("http://127.0.0.1:9", timeout_s=1.0)})
    link._child.adopt(subprocess.Popen(["sleep", "60"]), ours)
    with theirs:
        theirs.sendall(struct.pack("!I", 1 << 31) + bytes(1000))
        assert "2147483648 bytes" in link.send("traces", b"").message


def test_a_certificate_that_is_not_there_is_reported_and_looked_for_again(tmp_path: Path) -> None:
    target = Endpoint("https://127.0.0.1:9", certificate=str(tmp_path / "ca.pem"), insecure=False, timeout_s=1.0)
    link = GrpcLink({"traces": target})
    outcomes = [link.send("traces", b"") for _ in range(2)]
    link.close()
    assert [o.status for o in outcomes] == ["retry", "retry"]
    assert all("FileNotFoundError" in o.message and str(tmp_path) in o.message for o in outcomes)
    assert "agent's user can read" in _remedy(outcomes[0].message, OtlpSettings())


def test_details_that_cannot_be_read_ask_for_no_pause() -> None:
    def export(_: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata((("grpc-status-details-bin", b"\xff\xff"),))
        context.abort(grpc.StatusCode.UNAVAILABLE, "later")
        return b""

    server = grpc.server(ThreadPoolExecutor(1))
    handlers = {"Export": grpc.unary_unary_rpc_method_handler(export)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_EXPORT, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    link = GrpcLink({"traces": Endpoint(f"http://127.0.0.1:{port}", timeout_s=5.0)})
    assert link.send("traces", b"") == Outcome("retry", message="UNAVAILABLE: later")
    link.close()
    server.stop(None).wait()


def test_a_redirect_reports_where_the_endpoint_is() -> None:
    assert "Location" in _remedy("HTTP 301 Moved Permanently", OtlpSettings())
