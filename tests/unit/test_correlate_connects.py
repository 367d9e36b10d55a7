"""Connects that fail and connections that are reset, by peer, where no limiter tells of them; what restarts and health
checks do is none.
"""

from __future__ import annotations

import errno

import numpy as np
import pytest

from tests.unit.correlate_scenarios import APP_PID, START, T0, Host, S, latest, peer, run

API = peer("10.0.0.2", 443)
UNTIL = 60
APP = {"pid": APP_PID, "netns": 4026531840}


def connects(host: Host, at: np.ndarray, failed: object = None, to: bytes = API) -> None:
    """At these times; failed: with that errno, where one is given."""
    host.add(
        "tcp_connect",
        at=at,
        **APP,
        peer=to,
        result="failed" if failed else "ok",
        errno=failed or 0,
        duration_ns=300_000,
    )


def resets(host: Host, at: np.ndarray, role: str = "client") -> None:
    host.add("tcp_reset", at=at, **APP, peer=API, role=role, direction="received")


def steady() -> Host:
    """Four connects a second."""
    host = Host()
    connects(host, np.arange(0, UNTIL, 0.25))
    return host


BAD = np.arange(30, 32, 0.25) + 0.1


def refused() -> Host:
    host = steady()
    connects(host, BAD, errno.ECONNREFUSED)
    resets(host, BAD)  # which is how they are refused
    return host


def unanswered() -> Host:
    host = steady()
    connects(host, BAD, errno.ETIMEDOUT)
    return host


def portless() -> Host:
    """Two connects find a port in between."""
    host = steady()
    connects(host, BAD, errno.EADDRNOTAVAIL)
    connects(host, np.array([30.5, 31.0]), errno.ECONNREFUSED)
    return host


def reset() -> Host:
    host = steady()
    resets(host, BAD)
    return host


@pytest.mark.parametrize(
    ("host", "cause", "detail"),
    [(refused(), "broker_down", ""), (unanswered(), "network_loss", ""), (reset(), "network_loss", "reset")],
)
def test_a_peer_that_cannot_be_reached_is_reported_with_how(host: Host, cause: str, detail: str) -> None:
    (found,) = latest(run(host, UNTIL))
    assert (found["symptom"], found["cause"], found["cause_detail"]) == ("connect_failures", cause, detail)
    assert (found["subject"], found["culprit_object"]) == ("10.0.0.2:443", "10.0.0.2:443")


@pytest.mark.parametrize(("share", "cause"), [(1.0, "server_error"), (0.3, "network_loss")])
def test_a_server_of_this_host_that_resets_connections_is_no_network(share: float, cause: str) -> None:
    host, its = (
        reset(),
        {"pid": 900, "proc_start_ns": START, "comm": b"python", "role": "server", "netns": APP["netns"]},
    )
    ends = {"saddr": API[:16], "sport": 443, "peer": peer("10.0.0.2", 40_000)}
    host.add("tcp_rtt", t_ns=T0 + np.arange(UNTIL) * S, **its, **ends, rtt=(5, 90, 100, 110))
    host.add("tcp_reset", at=BAD[: int(share * len(BAD))], **its, **ends, direction="sent")
    (found,) = (one for one in latest(run(host, UNTIL)) if one["symptom"] == "connect_failures")
    assert (found["cause"], found["culprit_object"]) == (cause, "10.0.0.2:443")
    if share == 1:
        assert found["culprit_pid"] == 900
        assert "python pid 900 reset 8 connections" in str(found["sentence"])


def test_no_local_port_is_the_fault_of_who_uses_them_up() -> None:
    (found,) = latest(run(portless(), UNTIL))
    assert (found["symptom"], found["cause"], found["cause_detail"]) == ("connect_failures", "resource_limit", "ports")
    assert found["culprit_pid"] == APP_PID
    assert f"no local port was left for {len(BAD)} connections to it" in str(found["sentence"])


def test_two_of_them_are_none_and_neither_is_what_fails_every_now_and_then() -> None:
    host = steady()
    connects(host, BAD[:2], errno.ECONNREFUSED)
    assert latest(run(host, UNTIL)) == []
    host = refused()
    connects(host, np.arange(1, 30, 4) + 0.2, errno.ECONNREFUSED)  # a check of a server that is often away
    assert latest(run(host, UNTIL)) == []


def test_a_server_whose_clients_reset_it_is_none() -> None:
    host = steady()
    resets(host, BAD, "server")
    assert latest(run(host, UNTIL)) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_busy_host_on_which_some_connects_fail_is_not_reported(seed: int) -> None:
    """Ten minutes of varying load: one server refuses one connect in fifty, another none."""
    rng = np.random.default_rng(seed)
    host = Host(seed)
    for to, failing in ((API, 0.02), (peer("10.0.0.3", 80), 0.0)):
        for second, load in enumerate(np.repeat(rng.uniform(1, 80, 60), 10)):
            n = int(rng.poisson(load))
            at = second + np.sort(rng.random(n))
            bad = rng.random(n) < failing
            connects(host, at[~bad], None, to)
            connects(host, at[bad], errno.ECONNREFUSED, to)
    assert latest(run(host, 600, every_ms=1000)) == []


def slow(seconds: float = 1.1) -> Host:
    host = steady()
    at = np.arange(30, 33, 0.4) + 0.1
    host.add("tcp_connect", at=at, **APP, peer=API, result="ok", errno=0, duration_ns=int(seconds * S))
    return host


def test_connects_that_take_long_are_reported_with_what_was_sent_again() -> None:
    host = slow()
    host.add("tcp_retransmit", 7, t_ns=T0 + 30 * S + np.arange(7) * 400_000_000, **APP, peer=API, kind="syn", count=1)
    (found,) = latest(run(host, UNTIL))
    assert (found["symptom"], found["cause"], found["subject"]) == ("connect_latency", "network_loss", "10.0.0.2:443")
    assert "took up to 1.1 s (usually 300 us)" in str(found["sentence"])


def test_connects_that_always_take_long_are_usual() -> None:
    host = Host()
    host.add(
        "tcp_connect",
        200,
        t_ns=T0 + np.arange(200) * S // 4,
        **APP,
        peer=API,
        result="ok",
        errno=0,
        duration_ns=np.where(np.arange(200) % 3, 300_000, 250_000_000),
    )
    assert latest(run(host, UNTIL)) == []


@pytest.mark.parametrize("talked", [True, False])
def test_a_server_that_is_gone_from_old_connections(talked: bool) -> None:
    """Nobody connected for long, since connections were kept; who is first tried when it is down was never there, as
    far as is known.
    """
    host = Host()
    t = T0 + np.arange(0, 30) * S
    host.add(
        "tcp_rtt", t_ns=t, **APP, role="client", peer=API if talked else peer("10.0.0.3", 443), rtt=(5, 90, 100, 110)
    )
    connects(host, np.arange(30, 36, 0.25), errno.ECONNREFUSED)
    found = latest(run(host, UNTIL))
    assert [(one["symptom"], one["cause"]) for one in found] == (
        [("connect_failures", "broker_down")] if talked else []
    )


def test_old_connections_that_a_server_resets_are_no_failure_of_connects() -> None:
    """As one does that has too many clients."""
    host = Host()
    t = T0 + np.arange(0, UNTIL) * S
    host.add("tcp_rtt", t_ns=t, **APP, role="client", peer=API, rtt=(5, 90, 100, 110))
    resets(host, BAD)
    assert latest(run(host, UNTIL)) == []


def closes(host: Host, at: np.ndarray, bytes_in: int, ms: float) -> None:
    """Connections of the client's that ended then, with what it had received."""
    host.add(
        "tcp_close",
        at=at,
        **APP,
        peer=API,
        role="client",
        duration_ns=int(ms * 1e6),
        bytes_in=bytes_in,
        bytes_out=40,
        waited_ns=-(2**63),
    )


@pytest.mark.parametrize(
    ("bytes_in", "ms", "cause", "detail"),
    [
        (36, 0.4, "broker_down", "turned_away"),  # -ERR max number of clients reached
        (0, 0.4, "network_loss", "reset"),
        (36, 45_000, "network_loss", "reset"),
        (80_000, 0.4, "network_loss", "reset"),
    ],
)
def test_who_is_answered_with_a_few_words_and_shown_out_is_not_reset_by_a_network(
    bytes_in: int, ms: float, cause: str, detail: str
) -> None:
    host = steady()
    resets(host, BAD)
    closes(host, BAD, bytes_in, ms)
    (found,) = latest(run(host, UNTIL))
    assert (found["symptom"], found["cause"], found["cause_detail"]) == ("connect_failures", cause, detail)
    if detail == "turned_away":
        assert "it closed 8 connections at once, each after 36 bytes" in str(found["sentence"])


def test_where_each_answer_has_a_connection_they_are_not_shown_out() -> None:
    """They close after a few bytes all the time; those that were reset are others."""
    host = steady()
    closes(host, np.arange(0, UNTIL, 0.25), 36, 0.4)
    resets(host, BAD)
    (found,) = latest(run(host, UNTIL))
    assert (found["cause"], found["cause_detail"]) == ("network_loss", "reset")
