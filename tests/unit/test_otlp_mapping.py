"""Which spans, logs and events are decisions, and which columns their attributes become; where OTLP may be taken."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest

from agent.common.settings import read as read_settings
from agent.errors import AgentError
from agent.limiters.decision import Malformed, use_salt
from agent.receiver.mapping import MEANING, NAMES
from agent.receiver.receiver_messages import TABLE
from agent.receiver.receiver_worker import MAX_BODY_BYTES, RequestRefused, unpacked
from agent.receiver.settings import ReceiverSettings
from tests.unit.adapters import hashed
from tests.unit.otlp_pieces import BOOT, SPAN, TRACE, as_json, fuzz, logs, read, spans


@pytest.fixture(autouse=True)
def without_a_salt() -> None:
    """Whatever tests before have set."""
    use_salt(b"")


RESULTS = TABLE.by_name["result"].names
ASPNET = {"aspnetcore.rate_limiting.policy": "fixed", "aspnetcore.rate_limiting.result": "endpoint_limiter"}


def one(given: dict[str, Any], **more: Any) -> dict[str, Any]:
    (values,) = read("traces", spans(given, **more))
    return values


def test_a_span_of_a_limiter_is_a_decision_with_its_duration_and_its_trace() -> None:
    given = {
        "rate_limiting.result": "Refused",
        "rate_limiting.limiter.name": "pay",
        "rate_limiting.key": "c17",
        "ratelimit.limit": 40,
        "ratelimit.remaining": 0,
        "rate_limiting.window": 1.5,
        "rate_limiting.wait_ms": 20,
        "http.route": "/pay",
    }
    values = one(given, at_ns=5_000_000_000)
    assert values == {
        "t_ns": 5_000_000_000,
        "duration_ns": 700,
        "result": RESULTS.index("refused"),
        "limiter_id": b"shop:pay",
        "key": hashed("c17"),
        "burst": 40,
        "remaining": 0,
        "window_ns": 1_500_000_000,
        "wait_ns": 20_000_000,
        "library": b"acme.limiter",
        "library_version": b"3.1",
        "source": TABLE.code("source", "otlp"),
        "trace_id": TRACE.hex().encode(),
        "span_id": SPAN.hex().encode(),
    }
    (same,) = read("traces", json.dumps(as_json(spans(given, at_ns=5_000_000_000))).encode(), is_json=True)
    assert same == values


@pytest.mark.parametrize(
    ("output", "result"),
    [
        ("acquired", "allowed"),
        ("endpoint_limiter", "refused"),
        ("global_limiter", "refused"),
        ("request_canceled", "cancelled"),
    ],
)
def test_aspnetcore_reports_it_in_words_of_its_own(output: str, result: str) -> None:
    values = one({**ASPNET, "aspnetcore.rate_limiting.result": output}, kind=2, at_ns=5_000_000_000)
    assert (values["limiter_id"], RESULTS[values["result"]]) == (b"shop:fixed", result)
    # A request takes longer than the decision, which comes at its beginning.
    assert values["t_ns"] == 5_000_000_000 - 700
    assert "duration_ns" not in values


def test_logs_and_events_are_decisions_too() -> None:
    (log,) = read("logs", logs({"ratelimit.allowed": True, "ratelimit.policy": "mail"}, at_ns=9_000_000_000))
    assert (log["limiter_id"], log["t_ns"], RESULTS[log["result"]]) == (b"mail", 9_000_000_000, "allowed")
    assert log["trace_id"] == TRACE.hex().encode()
    (event,) = read("traces", spans({"rate_limit.limited": True}, events=True, service="unknown_service:java"))
    assert (event["limiter_id"], RESULTS[event["result"]]) == (b"limited", "refused")
    assert event["span_id"] == SPAN.hex().encode()


def test_what_tickscope_exports_is_taken_unless_it_comes_round_again() -> None:
    given = {
        "rate_limiting.limiter.id": "api:pay",
        "rate_limiting.result": "delayed",
        "rate_limiting.key": "985be999690d734c",
        "tickscope.source": "uprobe",
        "tickscope.wait_ns": 17,
        "tickscope.limit_per_s": 2.5,
        "tickscope.library": "golang.org/x/time/rate",
    }
    values = one(given, boot_id="another")
    assert (values["limiter_id"], values["key"], values["wait_ns"], values["limit_per_s"]) == (
        b"api:pay",
        b"985be999690d734c",
        17,
        2.5,
    )
    assert values["library"] == b"golang.org/x/time/rate"
    assert read("traces", spans(given, boot_id=BOOT)) == []
    assert read("traces", spans({**given, "tickscope.source": "otlp"}, boot_id="another")) == []


def test_what_has_no_result_is_no_decision() -> None:
    assert read("traces", spans({"ratelimit.remaining": 3}, {"http.route": "/"}, {})) == []


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"rate_limiting.result": "maybe"}, "result 'maybe' is not known"),
        ({"rate_limiting.result": 3}, "result '3' is not known"),
        ({"rate_limiting.allowed": "yes"}, "allowed must be true or false"),
        ({"rate_limiting.result": "allowed", "ratelimit.limit": -1}, "ratelimit.limit is not a number from 0 to"),
        (
            {"rate_limiting.result": "allowed", "ratelimit.window": float("inf")},
            "ratelimit.window is not a number from 0 to",
        ),
        ({"rate_limiting.result": "allowed", "rate_limiting.key": True}, "key must be a text"),
        ({"rate_limiting.result": "allowed", "rate_limiting.limiter.id": ""}, "the limiter's name is empty"),
    ],
)
def test_one_that_cannot_be_read_reports_why(given: dict[str, Any], why: str) -> None:
    with pytest.raises(Malformed, match=re.escape(why)):
        read("traces", spans(given))


def test_a_time_beyond_what_there_is_cannot_be_read() -> None:
    with pytest.raises(Malformed, match="its time"):
        read("logs", logs({"ratelimit.allowed": True}, at_ns=(1 << 64) - 1))


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (gzip.compress(bytes(MAX_BODY_BYTES + 1)), 413),
        (gzip.compress(gzip.compress(bytes(1 << 28), 1), 1)[:-9], 400),
        (gzip.compress(b"x" * 999)[:-9], 400),
        (gzip.compress(b"one") + gzip.compress(b"two"), 400),
        (gzip.compress(b"") * 80_000, 400),
        (b"\x1f\x8bgarbage", 400),
        (b"", 400),
    ],
    ids=["bomb", "cut bomb", "cut", "members", "many members", "garbage", "empty"],
)
def test_gzip_that_is_wrong_or_too_large_is_refused(data: bytes, status: int) -> None:
    with pytest.raises(RequestRefused) as refused:
        unpacked(data)
    assert refused.value.status == status


def test_gzip_and_zlib_are_unpacked() -> None:
    assert unpacked(gzip.compress(b"gzip")) == b"gzip"
    assert unpacked(zlib.compress(b"deflate")) == b"deflate"


def test_hostile_inputs_are_refused_or_are_decisions() -> None:
    assert fuzz(2000) > 150


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ({"http": "127.0.0.1:4318"}, "port 4318 is that of an OpenTelemetry Collector"),
        ({"http": "[::1]:4317"}, "port 4317 is that of an OpenTelemetry Collector"),
        ({"http": "0.0.0.0:24318"}, "must be a loopback address"),
        ({"http": "10.0.0.1:24318"}, "must be a loopback address"),
        ({"http": "here:24318"}, "must be a loopback address"),
        ({"http": "127.0.0.1:80"}, "the port must be at least 1024"),
        ({"http": [1]}, "must be address:port"),
        ({"grpc": "127.0.0.1:24317"}, "OTLP over gRPC is not received: set http"),
        ({"htpp": "127.0.0.1:24318"}, "did you mean http?"),
    ],
)
def test_settings_that_are_refused(section: dict[str, object], why: str) -> None:
    with pytest.raises(AgentError) as error:
        read_settings(ReceiverSettings, section)
    assert why in str(error.value)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("section", "http"),
    [
        ({"http": ":24318", "grpc": ""}, ("127.0.0.1", 24318)),
        ({"http": 24318}, ("127.0.0.1", 24318)),
        ({"http": "[::1]:24318"}, ("::1", 24318)),
        ({"http": ""}, None),
        ({}, None),
    ],
)
def test_settings_that_are_taken(section: dict[str, object], http: object) -> None:
    assert read_settings(ReceiverSettings, section).http == http


def test_the_attributes_of_the_documents_are_those_that_are_taken() -> None:
    text = (Path(__file__).parents[2] / "docs/limiters-reference.md").read_text()
    part = text.partition("## OTLP attributes")[2].partition("\n## ")[0]
    reported = {f"{name}.{ending}" for name in NAMES for ending in re.findall(r"`\*\.([\w.]+)`", part)}
    assert reported | {name for name in MEANING if name.startswith("tickscope.")} == set(MEANING)


@pytest.mark.parametrize(
    "share", [0, -1, 0.0, -0.5, 1e-300, 5e-324, 1.0000001, 2, float("nan"), float("inf"), 1 << 62, True, "often"]
)
def test_a_decision_with_a_sample_rate_that_is_no_share_is_refused(share: Any) -> None:
    with pytest.raises(Malformed, match=r"tickscope\.sample_rate is not a number from 1e-06 to 1"):
        one({"rate_limiting.result": "allowed", "tickscope.sample_rate": share})


@pytest.mark.parametrize("share", [1, 1.0, 0.25, 1e-6])
def test_a_sample_rate_that_is_one_stays(share: float) -> None:
    assert one({"rate_limiting.result": "allowed", "tickscope.sample_rate": share})["sample_rate"] == share
