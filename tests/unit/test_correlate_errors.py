"""Decisions that fail and brokers that refuse service: with what the broker says of itself, and without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.correlate_scenarios import APP_PID, PEER, T0, UNTIL, Host, S, code, latest, run

ERROR = code("limiter_decision", "result", "error")
WELL: dict[str, Any] = {"server_role": b"primary", "clients_refused": 0, "errors_per_s": 0.0, "memory_bytes": 5 << 20}


def host_with(during: dict[str, Any], failing: bool = True, connects: bool = False) -> Host:
    """Well for 30 s, then three seconds in which decisions fail and the server says what is given."""
    host = Host()
    for a, b, output in ((0, 30, {}), (30, 33, during), (33, UNTIL, {})):
        host.queue(a, b, **(WELL | output))
        host.rtt(a, b)
        host.server(a, b)
        failed: dict[str, Any] = {"result": ERROR} if failing and a == 30 else {}
        host.decisions(a, b, **failed)
    if connects:
        n = 20
        host.add(
            "tcp_connect",
            n,
            t_ns=T0 + 30 * S + np.arange(n) * S // 10,
            pid=APP_PID,
            peer=PEER,
            result="failed",
            errno=111,
        )
    return host


@pytest.mark.parametrize(
    ("output", "cause", "detail"),
    [
        ({"errors": b"OOM 40", "errors_per_s": 40.0, "memory_limit_bytes": 4 << 20}, "resource_limit", "memory"),
        ({"errors": b"READONLY 40", "errors_per_s": 40.0, "server_role": b"cut off"}, "failover", ""),
        ({"errors": b"READONLY 40", "errors_per_s": 40.0, "server_role": b"replica"}, "failover", ""),
        ({"errors": b"READONLY 40", "errors_per_s": 40.0}, "failover", ""),
        ({"errors": b"LOADING 40", "errors_per_s": 40.0}, "broker_down", ""),
        ({"errors": b"MISCONF 12", "errors_per_s": 12.0}, "resource_limit", "disk_full"),
        ({"clients_refused": np.array([9, 20, 35]), "clients": 100, "clients_limit": 100}, "resource_limit", "clients"),
    ],
)
def test_a_server_that_refuses_is_reported_with_whose_decisions_failed(
    output: dict[str, Any], cause: str, detail: str
) -> None:
    (finding,) = latest(run(host_with(output), UNTIL))
    assert (finding["symptom"], finding["cause"], finding["cause_detail"]) == ("service_errors", cause, detail)
    assert (finding["culprit_pid"], finding["culprit_object"]) == (900, "127.0.0.1:6399")
    assert "limiter api" in str(finding["sentence"])
    assert "127.0.0.1:6399" in str(finding["sentence"])


def test_it_is_reported_also_where_nobody_reports_decisions() -> None:
    (finding,) = latest(run(host_with({"errors": b"OOM 40", "errors_per_s": 40.0}, failing=False), UNTIL))
    assert (finding["symptom"], finding["cause"]) == ("service_errors", "resource_limit")
    assert str(finding["subject"]).startswith("the redis server at 127.0.0.1:6399")


def test_an_alarm_is_reported_from_its_first_poll_to_its_last() -> None:
    host = Host()
    disk = {"errors": b"DISK_ALARM 1"}
    both = {"errors": b"DISK_ALARM 1, MEMORY_ALARM 1", "memory_bytes": 9, "memory_limit_bytes": 5}
    for a, b, output in ((0, 4, disk), (4, 30, {}), (30, 37, both), (37, UNTIL, {})):
        host.queue(a, b, **(WELL | {"system": b"rabbitmq"} | output))
    found = latest(run(host, UNTIL))
    for finding, detail, begun, ended in zip(found, ("disk_full", "memory"), (0, 30), (4, 37), strict=True):
        assert (finding["symptom"], finding["cause"]) == ("service_errors", "resource_limit")
        assert finding["cause_detail"] == detail
        assert begun - 1 <= (finding["start_ns"] - T0) / S <= begun + 1
        assert ended - 1 <= (finding["end_ns"] - T0) / S <= ended + 1
    assert str(found[1]["subject"]).startswith("the rabbitmq server at 127.0.0.1:6399")


def test_without_what_the_server_reports_the_cause_is_not_known() -> None:
    (finding,) = latest(run(host_with({}), UNTIL))
    assert (finding["symptom"], finding["cause"]) == ("service_errors", "unknown")


def test_connections_that_are_refused_are_why_decisions_fail() -> None:
    (finding,) = latest(run(host_with({}, connects=True), UNTIL))
    assert (finding["symptom"], finding["cause"]) == ("service_errors", "broker_down")
    assert finding["culprit_object"] == "127.0.0.1:6399"


def test_clients_without_a_password_and_single_errors_are_silent() -> None:
    host = host_with({"errors": b"NOAUTH 40, WRONGPASS 7", "errors_per_s": 47.0}, failing=False)
    host.decisions(20, 21, rate=2, result=ERROR)
    host.decisions(40, 41, rate=2, result=ERROR)
    assert latest(run(host, UNTIL)) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_limiter_of_which_some_decisions_always_fail_is_silent(seed: int) -> None:
    host = Host(seed)
    host.decisions(0, 300, rate=20)
    host.decisions(0, 300, rate=3, result=ERROR)
    host.queue(0, 300, **(WELL | {"errors": b"READONLY 3", "errors_per_s": 3.0, "server_role": b"replica"}))
    assert latest(run(host, 300)) == []
