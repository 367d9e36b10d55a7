"""TLS handshakes that fail, by the address that they are made with."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.correlate_scenarios import APP_PID, MS, START, T0, Host, S, code, latest, peer, run

API = peer("10.0.0.2", 443)
UNTIL = 60
BAD = np.arange(30, 36, 0.25)


def shakes(host: Host, at: np.ndarray, error: bytes | None = None, role: str = "client") -> None:
    own = {"peer": np.frombuffer(API, "V18")} if role == "client" else {
        "saddr": np.frombuffer(API[:16], "V16"), "sport": 443, "peer": np.frombuffer(peer("10.0.0.77", 40000), "V18")}  # fmt: skip
    host.add("tls_handshake", len(at), t_ns=T0 + (at * S).astype(np.int64), pid=APP_PID, proc_start_ns=START, comm=b"curl", netns=1,
             role=code("tls_handshake", "role", role), result=code("tls_handshake", "result", "ok" if error is None else "failed"),
             error=error or b"", duration_ns=3 * MS, **own)  # fmt: skip


def service(error: bytes, before: bool = True, role: str = "client", every: float = 0.25) -> Host:
    host = Host()
    if before:
        for a, b in ((0, 30), (36, UNTIL)):
            shakes(host, np.arange(a, b, every), role=role)
    else:
        host.decisions(0, UNTIL)
    shakes(host, BAD, error, role)
    return host


def test_a_certificate_that_expired() -> None:
    (one,) = latest(run(service(b"certificate: expired"), UNTIL))
    assert (one["symptom"], one["cause"], one["cause_detail"]) == ("handshake_failures", "tls", "certificate")
    assert (one["culprit_object"], one["state"]) == ("10.0.0.2:443", "closed")
    assert "Up to 100 % of the TLS handshakes with 10.0.0.2:443 failed" in str(one["sentence"])
    assert "TLS handshakes with it failed, mostly with: certificate: expired" in str(one["sentence"])


def test_its_clients_know_better_than_the_server_why() -> None:
    host = service(b"certificate: wrong host name")
    shakes(host, BAD + 0.01, b"handshake failed", role="server")
    (one,) = latest(run(host, UNTIL))
    assert "certificate: wrong host name" in str(one["sentence"])


def test_a_busy_server_whose_clients_are_elsewhere() -> None:
    (one,) = latest(run(service(b"handshake failed", role="server"), UNTIL))
    assert (one["symptom"], one["cause"], one["cause_detail"]) == ("handshake_failures", "tls", "")


@pytest.mark.parametrize("every", [4.0, 1e9])
def test_scans_of_a_quiet_server_are_none(every: float) -> None:
    assert latest(run(service(b"handshake failed", role="server", every=every), UNTIL)) == []


def test_a_few_among_many_are_none() -> None:
    host = Host()
    shakes(host, np.arange(0, UNTIL, 0.05))
    shakes(host, BAD, b"connection closed")
    assert latest(run(host, UNTIL)) == []
