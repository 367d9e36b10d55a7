"""Programs that try again at once what has failed; and what looks like it, but waits, or was asked for so often
anyway.
"""

from __future__ import annotations

import errno

import numpy as np
import pytest

from tests.unit.correlate_scenarios import START, T0, Host, S, latest, peer, run
from tests.unit.test_correlate_answers import PORT, SHOP_PID, answers
from tests.unit.test_correlate_processes import event

SHOP = peer("10.0.0.2", PORT)
EAGER_PID, NETNS, UNTIL = 1800, 1, 60


def tries(host: Host, at: np.ndarray, outcome: str = "ok", pid: int = EAGER_PID, tid: object = EAGER_PID) -> None:
    """Connects that begin at these times. outcome: ``ok`` (answered), ``refused``, ``empty`` (the server ends it
    without an answer), ``sent`` (the program ends it, and wants none).
    """
    began = T0 + (np.sort(at) * S).astype(np.int64)
    who = {
        "pid": pid,
        "tid": tid,
        "proc_start_ns": START,
        "comm": b"eager",
        "netns": NETNS,
        "peer": np.frombuffer(SHOP, "V18"),
    }
    refused = outcome == "refused"
    host.add(
        "tcp_connect",
        len(at),
        t_ns=began + 300_000,
        duration_ns=300_000,
        result="failed" if refused else "ok",
        errno=errno.ECONNREFUSED if refused else 0,
        **who,
    )
    if not refused:
        more = {"waited_ns": 4_000_000} if outcome == "sent" else {}
        host.add(
            "tcp_close",
            len(at),
            t_ns=began + 2_000_000,
            duration_ns=1_700_000,
            role="client",
            srtt_us=100,
            bytes_in=90 if outcome == "ok" else 0,
            bytes_out=80,
            **who,
            **more,
        )


def steady(until: float = UNTIL) -> Host:
    """Four requests a second, which are answered."""
    host = Host()
    tries(host, np.arange(0, until, 0.25))
    return host


STORM = np.arange(30, 36, 1 / 300)


@pytest.mark.parametrize("outcome", ["empty", "refused"])
def test_who_tries_again_at_once_is_reported_with_how_often(outcome: str) -> None:
    host = steady()
    tries(host, STORM, outcome)
    found = {f["symptom"]: f for f in latest(run(host, UNTIL))}
    cause = "retry_storm" if outcome == "empty" else "broker_down"  # that it is refused is why
    assert {f["cause"] for f in found.values()} == {cause}
    (one,) = found.values()
    if outcome == "empty":
        assert (one["symptom"], one["culprit_pid"], one["culprit_comm"]) == ("retry_storm", EAGER_PID, "eager")
        assert "eager pid 1800 connected to 10.0.0.2:8080 up to 304 per second (usually 4" in str(one["sentence"])
        assert one["start_ns"] == T0 + 30 * S
    else:
        assert "eager pid 1800" in str(one["sentence"])


def test_the_end_of_the_server_is_the_reason_for_it() -> None:
    host = steady(30)
    host.add(
        "tcp_rtt",
        at=np.arange(30),
        pid=SHOP_PID,
        comm=b"shop",
        netns=NETNS,
        role="server",
        saddr=SHOP[:16],
        sport=PORT,
        peer=peer("10.0.0.1", 40000),
        rtt=(5, 90, 100, 110),
    )
    tries(host, STORM, "refused")
    event(host, "killed", 30, pid=SHOP_PID, comm=b"shop", signal=9)
    causes = {f["cause"] for f in latest(run(host, UNTIL))}
    assert causes <= {"process_killed", "broker_down"}
    assert "process_killed" in causes


def test_it_is_why_others_wait_for_the_server() -> None:
    """One finding: the storm, and the service that it keeps busy."""
    host = steady()
    answers(host, 0, 30)
    answers(host, 30, 38, ms=900, n=3)
    answers(host, 38, UNTIL, n=1)
    tries(host, np.arange(29.5, 38, 1 / 300), "empty")
    (found,) = latest(run(host, UNTIL))
    assert (found["cause"], found["culprit_pid"]) == ("retry_storm", EAGER_PID)
    assert found["symptom"] == "service_latency"
    assert "eager pid 1800 retried failed connects without waiting" in str(found["sentence"])
    assert "Also affected" in str(found["sentence"])


def test_requests_that_come_at_their_own_rate_and_fail_are_none() -> None:
    """300 a second all the time; the server is away for six seconds."""
    host = Host()
    tries(host, np.arange(0, 30, 1 / 300))
    tries(host, STORM, "refused")
    tries(host, np.arange(36, UNTIL, 1 / 300))
    assert "retry_storm" not in str([f["evidence"] for f in latest(run(host, UNTIL))])


def test_a_pool_that_is_opened_again_each_second_is_none() -> None:
    """Fifty threads, each of which waits for a second; all of them begin within five milliseconds."""
    host = steady()
    for second in range(30, 40):
        tries(host, second + 0.5 + np.arange(50) / 10_000, "empty")
    assert latest(run(host, UNTIL)) == []


@pytest.mark.parametrize("wait_s", [0.05, 0.1])
def test_a_short_wait_before_each_try_is_a_wait(wait_s: float) -> None:
    host = steady()
    tries(host, np.arange(30, 40, wait_s), "empty")
    assert latest(run(host, UNTIL)) == []


def test_what_wants_no_answer_has_not_failed() -> None:
    """A burst of a program that connects, sends a line and closes."""
    host = steady()
    tries(host, STORM, "sent")
    assert latest(run(host, UNTIL)) == []


def test_many_requests_that_are_answered_are_load() -> None:
    host = steady()
    tries(host, STORM, "ok")
    assert latest(run(host, UNTIL)) == []
