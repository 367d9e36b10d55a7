"""TLS handshakes that fail or take long, by the address that they are made with."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.correlate_scenarios import APP_PID, MS, START, T0, Host, S, code, latest, peer, run

API = peer("10.0.0.2", 443)
UNTIL = 60
BAD = np.arange(30, 36, 0.25)
CURL = {"pid": APP_PID, "comm": b"curl", "netns": 1}


def handshakes(
    host: Host, at: np.ndarray, error: bytes | None = None, role: str = "client", ms: float = 3, comm: bytes = b"curl"
) -> None:
    own = (
        {"peer": np.frombuffer(API, "V18")}
        if role == "client"
        else {
            "saddr": np.frombuffer(API[:16], "V16"),
            "sport": 443,
            "peer": np.frombuffer(peer("10.0.0.77", 40000), "V18"),
        }
    )
    host.add(
        "tls_handshake",
        at=at,
        pid=APP_PID,
        proc_start_ns=START,
        comm=comm,
        netns=1,
        role=role,
        result="ok" if error is None else "failed",
        error=error or b"",
        duration_ns=int(ms * MS),
        **own,
    )


def service(error: bytes, before: bool = True, role: str = "client", every: float = 0.25) -> Host:
    host = Host()
    if before:
        for a, b in ((0, 30), (36, UNTIL)):
            handshakes(host, np.arange(a, b, every), role=role)
    else:
        host.decisions(0, UNTIL)
    handshakes(host, BAD, error, role)
    return host


def test_a_certificate_that_expired() -> None:
    (one,) = latest(run(service(b"certificate: expired"), UNTIL))
    assert (one["symptom"], one["cause"], one["cause_detail"]) == ("handshake_failures", "tls", "certificate")
    assert (one["culprit_object"], one["state"]) == ("10.0.0.2:443", "closed")
    assert "Up to 100 % of the TLS handshakes with 10.0.0.2:443 failed" in str(one["sentence"])
    assert "because its certificate was refused in 24 TLS handshakes: expired" in str(one["sentence"])


def test_its_clients_know_better_than_the_server_why() -> None:
    host = service(b"certificate: wrong host name")
    handshakes(host, BAD + 0.01, b"handshake failed", role="server")
    (one,) = latest(run(host, UNTIL))
    assert "its certificate was refused in 24 TLS handshakes: wrong host name" in str(one["sentence"])


@pytest.mark.parametrize(("seen_by_client", "here"), [(None, True), (b"handshake failed", True), (None, False)])
def test_a_client_whose_certificate_expired_is_named(seen_by_client: bytes | None, here: bool) -> None:
    """With TLS 1.3 its handshake succeeds, and it is refused afterwards."""
    host = service(None)
    handshakes(host, BAD + 0.01, b"certificate: expired", role="server", comm=b"ledger")
    handshakes(host, BAD, seen_by_client)
    if here:
        at, to = T0 + (BAD * S).astype(np.int64), np.frombuffer(API, "V18")
        ok = code("tcp_connect", "result", "ok")
        host.add("tcp_connect", len(BAD), t_ns=at, pid=9, comm=b"curl", netns=1, peer=to, result=ok, duration_ns=MS)
    (one,) = latest(run(host, UNTIL))
    assert (one["cause"], one["cause_detail"]) == ("tls", "certificate")
    who = "client curl" if here else "clients"
    words = f"because ledger pid {APP_PID} refused the certificate of its {who} in 24 TLS handshakes: expired"
    assert words in str(one["sentence"])


@pytest.mark.parametrize(("resets", "findings"), [(BAD, 1), (np.arange(30, 36, 0.05), 2)])
def test_the_connections_that_it_resets_belong_to_that(resets: np.ndarray, findings: int) -> None:
    """It has not read what the client had sent; not where far more are reset."""
    host, client = service(None), {"pid": 9, "comm": b"curl", "netns": 1, "peer": np.frombuffer(API, "V18")}
    handshakes(host, BAD + 0.01, b"certificate: expired", role="server", comm=b"ledger")
    host.add("tcp_connect", at=np.arange(0, UNTIL, 0.25), **client, result="ok", duration_ns=MS)
    host.add("tcp_reset", at=resets + 0.02, **client, role="client", direction="received")
    found = latest(run(host, UNTIL))
    assert (len(found), "tls" in {one["cause"] for one in found}) == (findings, True), [f["sentence"] for f in found]


def test_a_busy_server_whose_clients_are_elsewhere() -> None:
    (one,) = latest(run(service(b"handshake failed", role="server"), UNTIL))
    assert (one["symptom"], one["cause"], one["cause_detail"]) == ("handshake_failures", "tls", "")


@pytest.mark.parametrize("every", [4.0, 1e9])
def test_scans_of_a_quiet_server_are_none(every: float) -> None:
    assert latest(run(service(b"handshake failed", role="server", every=every), UNTIL)) == []


def test_a_few_among_many_are_none() -> None:
    host = Host()
    handshakes(host, np.arange(0, UNTIL, 0.05))
    handshakes(host, BAD, b"connection closed")
    assert latest(run(host, UNTIL)) == []


def slow(round_trip_ms: float | None = 0.2, role: str = "client", share: float = 1.0) -> Host:
    """From 30 to 36 s handshakes take half a second each, of that share of them; round trips tell what the way is like,
    where any are seen.
    """
    host = Host()
    for a, b in ((0, 30), (36, UNTIL)):
        handshakes(host, np.arange(a, b, 0.25), role=role)
    handshakes(host, BAD[: int(share * len(BAD))], role=role, ms=500)
    handshakes(host, BAD[int(share * len(BAD)) :], role=role)
    if round_trip_ms is not None:
        at = np.arange(0, UNTIL) + 0.9
        us = np.where((at > 30) & (at < 36), round_trip_ms * 1000, 200).astype(np.int64)
        host.add("tcp_rtt", at=at, **CURL, role="client", peer=API, rtt=(20, us, us, us), interval_ns=S)
    return host


def test_handshakes_that_take_long_while_the_way_is_as_quick_as_ever() -> None:
    (one,) = latest(run(slow(), UNTIL))
    assert (one["symptom"], one["cause"], one["culprit_object"]) == ("handshake_latency", "tls", "10.0.0.2:443")
    assert "TLS handshakes with 10.0.0.2:443 took up to 500 ms (usually 3 ms)" in str(one["sentence"])
    assert one["state"] == "closed"


@pytest.mark.parametrize("host", [slow(share=0.08), slow(None)], ids=["a few of them", "the way is not known"])
def test_what_is_not_known_to_be_slow_by_itself_is_not_reported(host: Host) -> None:
    assert [f for f in latest(run(host, UNTIL)) if f["cause"] == "tls"] == []


def test_a_slow_way_makes_handshakes_slow() -> None:
    assert {f["cause"] for f in latest(run(slow(450), UNTIL))} == {"network_rtt"}
