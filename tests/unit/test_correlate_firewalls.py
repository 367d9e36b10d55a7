"""A firewall that refuses connects is told from a server that does."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from tests.unit.correlate_scenarios import T0, UNTIL, Host, S, code, latest, peer, run

CLIENT, SERVER, HERE, THERE = 700, 710, 4026531840, 4026532999
AT = peer("10.1.2.3", 8000)
AT_V = np.frombuffer(AT, "V18")

#: How long connects took on Linux 6.18 that began each 0.4 s, to a neighbour that was not there: each until it was
#: asked for in vain.
BY_ARP = np.resize(np.array([3074, 2674, 2274, 1873, 1474, 1073, 672, 273]) * 1_000_000, 5 * UNTIL)
CURL = {"pid": CLIENT, "netns": HERE}


def refused(
    number: int,
    took_ns: int | np.ndarray,
    received: bool,
    sent: bool,
    complete: bool = True,
    here: bool = True,
    sport: int = 8000,
) -> Host:
    """A server of another network namespace is asked over connections of their own; for four seconds they fail."""
    host = Host()
    t = T0 + (np.arange(0, UNTIL, 0.2) * S).astype(np.int64)
    bad = (t >= T0 + 30 * S) & (t < T0 + 34 * S)
    shared = {"rtt": (10, 30, 40, 50)}
    well = t[~bad]
    host.add("tcp_rtt", t_ns=well, **CURL, role="client", peer=AT_V, **shared)
    if here:
        host.add(
            "tcp_rtt",
            t_ns=well,
            pid=SERVER,
            netns=THERE,
            comm=b"python3",
            role="server",
            sport=8000,
            saddr=AT[:16],
            peer=peer("10.1.2.1", 40000),
            **shared,
        )
    result = np.where(bad, code("tcp_connect", "result", "failed"), code("tcp_connect", "result", "ok"))
    host.add(
        "tcp_connect",
        t_ns=t,
        pid=CLIENT,
        comm=b"curl",
        netns=HERE,
        peer=AT_V,
        result=result,
        errno=np.where(bad, number, -(2**63)),
        duration_ns=np.where(bad, took_ns, 90_000),
    )
    n = int(bad.sum())
    host.add("tcp_reset", at=9, **CURL, peer=peer("10.9.9.9", 80), direction="received", complete=complete)
    if received:
        host.add(
            "tcp_reset",
            n,
            t_ns=t[bad],
            **CURL,
            peer=AT_V,
            role=code("tcp_rtt", "role", "client"),
            saddr=peer("10.1.2.1", 0)[:16],
            sport=40000,
            direction="received",
            complete=complete,
        )
    if sent:
        host.add(
            "tcp_reset",
            n,
            t_ns=t[bad] - 10_000,
            netns=THERE,
            saddr=AT[:16],
            sport=sport,
            peer=peer("10.1.2.1", 40000),
            direction="sent",
            complete=complete,
        )
    return host


def decides(host: Host) -> Host:
    """Its client is a limiter, which fails where it cannot ask; that its server ends connections by resets is usual."""
    t = T0 + (np.arange(0, UNTIL, 0.2) * S).astype(np.int64)
    bad = (t >= T0 + 30 * S) & (t < T0 + 34 * S)
    host.add(
        "limiter_decision",
        len(t),
        t_ns=t + 1_000_000,
        pid=CLIENT,
        tid=CLIENT,
        comm=b"curl",
        limiter_id=b"api",
        library=b"own",
        cost=1.0,
        result=np.where(bad, code("limiter_decision", "result", "error"), 0),
        duration_ns=1_200_000,
    )
    well = t[~bad][::5]
    host.add(
        "tcp_reset",
        t_ns=well,
        **CURL,
        peer=AT_V,
        role=code("tcp_rtt", "role", "client"),
        sport=40000,
        saddr=peer("10.1.2.1", 0)[:16],
        direction="received",
        complete=True,
    )
    return host


@pytest.mark.parametrize(
    ("number", "received", "detail"), [(errno.ECONNREFUSED, True, "reset"), (errno.EHOSTUNREACH, False, "icmp")]
)
def test_a_limiter_whose_connects_a_firewall_refuses(number: int, received: bool, detail: str) -> None:
    (finding,) = latest(run(decides(refused(number, 80_000, received, sent=False)), UNTIL))
    assert (finding["symptom"], finding["cause"], finding["cause_detail"]) == ("service_errors", "firewall", detail)
    assert finding["culprit_object"] == "10.1.2.3:8000"


def test_a_limiter_whose_server_refuses_connects() -> None:
    (finding,) = latest(run(decides(refused(errno.ECONNREFUSED, 80_000, received=True, sent=True)), UNTIL))
    assert (finding["symptom"], finding["cause"]) == ("service_errors", "broker_down")


@pytest.mark.parametrize(
    ("host", "detail"),
    [
        (refused(errno.ECONNREFUSED, 80_000, received=True, sent=False), "reset"),
        (refused(errno.ECONNREFUSED, 80_000, received=False, sent=False), "icmp"),
        (refused(errno.ECONNREFUSED, 80_000, received=False, sent=False, here=False), "icmp"),
        (refused(errno.EHOSTUNREACH, S, received=False, sent=False, here=False), "icmp"),
        (refused(errno.EACCES, 80_000, received=False, sent=False, here=False), "icmp"),
    ],
)
def test_a_refusal_that_is_not_the_server_s(host: Host, detail: str) -> None:
    (finding,) = latest(run(host, UNTIL))
    assert (finding["symptom"], finding["cause"], finding["cause_detail"]) == ("connect_failures", "firewall", detail)
    assert finding["culprit_object"] == "10.1.2.3:8000"


@pytest.mark.parametrize(
    "host",
    [
        refused(errno.ECONNREFUSED, 80_000, received=True, sent=True),
        refused(errno.ECONNREFUSED, 80_000, received=True, sent=True, sport=15006),
        refused(errno.ECONNREFUSED, 80_000, received=True, sent=False, complete=False),
        refused(errno.ECONNREFUSED, 80_000, received=True, sent=False, here=False),
        refused(errno.EHOSTUNREACH, 3 * S, received=False, sent=False, here=False),
        refused(errno.EHOSTUNREACH, BY_ARP, received=False, sent=False, here=False),
    ],
    ids=[
        "its kernel sent them",
        "its kernel sent them from the port to which this one is redirected",
        "older kernel",
        "another host",
        "no such neighbour",
        "no such neighbour, asked by many",
    ],
)
def test_a_refusal_that_may_be_the_server_s(host: Host) -> None:
    assert [f["cause"] for f in latest(run(host, UNTIL))] not in ([], ["firewall"])


@pytest.mark.parametrize("here", [True, False])
def test_that_a_host_cannot_be_reached_is_no_proof_where_it_is_elsewhere(here: bool) -> None:
    (finding,) = latest(run(refused(errno.EHOSTUNREACH, 80_000, received=False, sent=False, here=here), UNTIL))
    assert finding["cause"] == "firewall"
    assert ("a firewall on the path" in str(finding["sentence"])) is here
    assert ("because a firewall, or a router, on the path" in str(finding["sentence"])) is not here


def test_where_resets_that_come_are_not_reported_there_is_no_proof() -> None:
    host = refused(errno.ECONNREFUSED, 80_000, received=False, sent=True)
    host.made = [batch for batch in host.made if batch.table != "tcp_reset" or len(batch.rows) > 1]
    assert [f["cause"] for f in latest(run(host, UNTIL))] not in ([], ["firewall"])


def test_who_gives_up_before_he_is_reported_was_not_refused() -> None:
    """Programs that wait for half a second ask for a neighbour that is not there: few are reported before."""
    host = refused(errno.EHOSTUNREACH, 300_000_000, received=False, sent=False, here=False)
    (connects,) = (batch.rows for batch in host.made if batch.table == "tcp_connect")
    bad = np.flatnonzero(connects["result"] == code("tcp_connect", "result", "failed"))
    connects["result"][bad[np.arange(len(bad)) % 5 > 1]] = code("tcp_connect", "result", "aborted")
    assert [f["cause"] for f in latest(run(host, UNTIL))] != ["firewall"]
