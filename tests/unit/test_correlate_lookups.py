"""Names that do not resolve any more, where nothing that waits for them is watched."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.correlate_scenarios import MS, START, Host, code, latest, peer, run

PID, UNTIL = 1900, 60
SERVER = peer("10.0.0.53", 53)
BAD = np.arange(30, 38, 0.5)


def lookups(
    host: Host,
    at: np.ndarray,
    result: str = "ok",
    name: bytes = b"db.test",
    to: bytes = SERVER,
    pid: int = PID,
    ms: float = 6,
) -> None:
    host.add(
        "dns_lookup", at=at, pid=pid, tid=pid, comm=b"shop", name=name, peer=to, duration_ns=int(ms * MS), result=result
    )


def host(result: str, to: bytes = SERVER, ms: float = 0.4, before: bool = True) -> Host:
    out = Host()
    if before:
        lookups(out, np.arange(0, 30, 0.5))
        lookups(out, np.arange(38, UNTIL, 0.5))
    lookups(out, BAD, result, to=to, ms=ms)
    return out


@pytest.mark.parametrize(
    ("result", "words"),
    [("servfail", "answered with servfail"), ("nxdomain", "answered with nxdomain"), ("timeout", "did not answer")],
)
def test_a_name_server_that_fails(result: str, words: str) -> None:
    (one,) = latest(run(host(result), UNTIL))
    assert (one["symptom"], one["cause"], one["cause_detail"], one["culprit_object"]) == (
        "lookup_failures",
        "dns",
        result,
        "10.0.0.53:53",
    )
    assert f"name server 10.0.0.53:53 {words}" in str(one["sentence"]) and "(db.test)" in str(one["sentence"])


def test_one_that_is_not_there_is_the_one_that_answered_before() -> None:
    out = host("error", to=bytes(18))
    lookups(out, np.array([29.7]), to=bytes(18))  # answered, but by whom was not seen
    (one,) = latest(run(out, UNTIL))
    assert (one["cause"], one["culprit_object"], one["state"]) == ("dns", "10.0.0.53:53", "closed")


def test_without_a_free_descriptor_no_server_can_be_asked() -> None:
    out = host("error", to=bytes(18))
    who = {"pid": PID, "proc_start_ns": START, "comm": b"shop", "kind": code("resource", "kind", "fd"), "limit": 20}
    for at, used in ((np.array([5.25, 15.25, 25.25]), 9), (np.arange(30.25, 38, 0.5), 20)):
        out.add("resource", at=at, interval_ns=500 * MS, used=used, **who)
    assert {one["cause"] for one in latest(run(out, UNTIL))} == {"resource_limit"}


def test_two_processes_have_one_finding() -> None:
    out = host("servfail")
    lookups(out, np.arange(0, 30, 0.5) + 0.1, pid=PID + 1)
    lookups(out, BAD + 0.1, "servfail", pid=PID + 1)
    (one,) = latest(run(out, UNTIL))
    assert "shop pid 1900" in str(one["sentence"]) and "shop pid 1901" in str(one["sentence"])


def test_names_that_never_were_are_no_failure() -> None:
    """A search list, a typing error, a list of bad senders."""
    out = host("nxdomain", before=False)
    lookups(out, np.arange(0, UNTIL, 0.25), name=b"known.test")
    assert latest(run(out, UNTIL)) == []


def test_now_and_then_is_none() -> None:
    out = Host()
    lookups(out, np.arange(0, UNTIL, 0.1))
    lookups(out, np.array([31.05, 31.55, 32.05, 41.05]), "servfail")
    assert latest(run(out, UNTIL)) == []


def slow(ms: float = 2_000, n: int = 4) -> Host:
    """Two names are looked up; one of them takes long for a while, by a name server that answers for the other."""
    out = Host()
    times = np.arange(0, UNTIL, 0.5)
    lookups(out, times[(times < 30) | (times > 38)])
    lookups(out, 30 + np.arange(1, n + 1) * ms / 1e3, ms=ms)
    lookups(out, np.arange(0, UNTIL, 0.25) + 0.1, name=b"cache.test", pid=PID + 1)
    return out


def test_a_name_that_takes_long_for_who_asks_for_nothing_else() -> None:
    (one,) = latest(run(slow(), UNTIL))
    assert (one["symptom"], one["cause"], one["cause_detail"]) == ("lookup_latency", "dns", "slow")
    assert one["culprit_object"] == "10.0.0.53:53"
    assert "name server 10.0.0.53:53 took up to 2 s for 4 lookups (db.test), and at most 6 ms for other names" in str(
        one["sentence"]
    )


def test_a_server_that_is_slow_for_all_names_is_reported_so() -> None:
    out = Host()
    times = np.arange(0, UNTIL, 0.5)
    for pid, name in ((PID, b"db.test"), (PID + 1, b"cache.test")):
        lookups(out, times[(times < 30) | (times > 38)], name=name, pid=pid)
        lookups(out, 30 + np.arange(1, 5) * 2.0, name=name, pid=pid, ms=2_000)
    (one,) = latest(run(out, UNTIL))
    assert one["symptom"] == "lookup_latency" and "for other names" not in str(one["sentence"])
    assert "shop pid 1900" in str(one["sentence"]) and "shop pid 1901" in str(one["sentence"])


@pytest.mark.parametrize(("ms", "n"), [(5_000, 1), (300, 10)])
def test_a_lone_packet_that_was_lost_and_what_is_a_little_slow_are_none(ms: float, n: int) -> None:
    assert latest(run(slow(ms, n), UNTIL)) == []


def test_who_always_waits_long_for_some_names_is_used_to_it() -> None:
    out = Host()
    lookups(out, np.arange(0, UNTIL, 0.5))
    lookups(out, np.arange(1, UNTIL, 1.3), name=b"far.test", ms=900)
    assert latest(run(out, UNTIL)) == []


def test_who_had_no_answer_for_long_has_nothing_to_be_compared_with() -> None:
    out = Host()
    lookups(out, np.array([0.5]))
    lookups(out, np.arange(2, 160, 4), "nxdomain")
    lookups(out, np.arange(160.2, 170, 0.5), ms=900)
    found = latest(run(out, 180))
    assert not any(one["symptom"] == "lookup_latency" for one in found), [str(one["sentence"]) for one in found]


@pytest.mark.parametrize(("server", "reported"), [("10.0.0.53", True), ("127.0.0.53", False)])
def test_at_an_address_of_loopback_others_may_ask_another_server(server: str, reported: bool) -> None:
    out, to = Host(), peer(server, 53)
    times = np.arange(0, UNTIL, 0.5)
    lookups(out, times[(times < 30) | (times > 38)], to=to)
    lookups(out, 30 + np.arange(1, 5) * 2.0, ms=2_000, to=to)
    lookups(out, np.arange(0, UNTIL, 0.25) + 0.1, name=b"cache.test", pid=PID + 1, to=to)
    (one,) = latest(run(out, UNTIL))
    assert one["symptom"] == "lookup_latency"
    assert ("other names" in str(one["sentence"])) is reported
