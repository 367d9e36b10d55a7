"""Collectors that answer to do harm: bodies and heads without end, and answers that trickle."""

from __future__ import annotations

import gzip
import socket
import threading
import time

import pytest

from agent.batch import make
from agent.common.clocks import boot_ns
from exporters.aggregate import MetricStore
from exporters.lane import MAX_RETRY_AFTER_S
from exporters.otlp_settings import Endpoint
from exporters.send import HttpSender
from exporters.transport import MAX_BODY_BYTES
from tests.hostile import Answers, endless, peak, reset_peak, serving
from tests.patience import until
from tests.servers.otlp_load import exporter
from tests.servers.strict_receiver import Answer, StrictReceiver

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n"
MOST_BYTES = 4 * MAX_BODY_BYTES + (8 << 20)  # a head has a hundred lines of 64 KiB


def trickle(start: bytes, again: bytes) -> Answers:
    def answers(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(start)
        while True:
            connection.sendall(again)
            time.sleep(0.02)

    return answers


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        (endless(OK + b"Content-Length: 1000000000000\r\n\r\n", b"\0" * 65536), "refused"),
        (endless(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"\0" * 65536 + b"\r\n"), "refused"),
        (endless(OK + b"\r\n", b"<" * 65536), "refused"),
        (endless(OK + b"Content-Encoding: gzip\r\n\r\n", gzip.compress(bytes(1 << 26))), "refused"),
        (endless(OK, b"X-A: " + b"a" * 60000 + b"\r\n"), "retry"),
        (endless(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 100), "retry"),
        (trickle(OK, b"X: y\r\n"), "retry"),
        (trickle(OK + b"Content-Length: 1000\r\n\r\n", b"\0"), "retry"),
        (trickle(b"H", b"T"), "retry"),
    ],
    ids=["long", "chunked", "unended", "packed", "head", "continue", "slow-head", "slow-body", "slow-status"],
)
def test_an_answer_costs_at_most_its_bounds(answers: Answers, status: str) -> None:
    with serving(answers) as port:
        sender = HttpSender("traces", Endpoint(f"http://127.0.0.1:{port}/v1/traces", timeout_s=1.0))
        before = reset_peak()
        outcome = sender.send(b"")
        assert peak() - before < MOST_BYTES
        assert outcome.status == status
        assert 0 < len(outcome.message) <= 200
        sender.close()


def test_a_request_can_be_given_up() -> None:
    with serving(trickle(OK, b"X: y\r\n")) as port:
        sender = HttpSender("traces", Endpoint(f"http://127.0.0.1:{port}/v1/traces", timeout_s=600))
        threading.Timer(0.3, sender.abort).start()
        assert sender.send(b"").status == "retry"
        sender.close()


def test_a_collector_cannot_ask_for_a_pause_without_end() -> None:
    with StrictReceiver() as receiver:
        receiver.answers.append(Answer(status=429, retry_after="1e12"))
        sink = exporter(f"http://127.0.0.1:{receiver.port}", MetricStore(), timeout_s=0.5)
        sink.offer(make("clock_change", 1, t_ns=boot_ns(), kind=0))
        until(lambda: sink.state()["state"] == "retrying")
        assert sink._lanes["traces"].not_before <= time.monotonic() + MAX_RETRY_AFTER_S
        sink.close()
